"""Where programs run: what loads them for the devices of this process or of hosts, and calls them there."""

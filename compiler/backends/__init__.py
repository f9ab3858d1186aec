"""Backends of programs: loaders for the devices of this process or of hosts, and their executables."""

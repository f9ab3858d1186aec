"""Messages between a service and its clients and commands, and the folders where these find it."""

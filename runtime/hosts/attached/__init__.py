"""A client of a service: its controller reaches workers through one connection to it."""

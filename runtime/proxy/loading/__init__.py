"""Programs of clients: their checks and compiler options, and what loads them on devices."""

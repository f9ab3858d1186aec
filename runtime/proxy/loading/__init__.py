"""Programs of clients: their checks, their compiler options, and their loading on devices."""

"""Programs of clients: their checks, their compiler options, and their loading on devices.

`program_checks.py` checks them; `backend.py` is the base class of the places where they are loaded.
"""

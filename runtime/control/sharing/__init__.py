"""What decides for many clients that share islands.

- `scheduler.py` decides whose step is next; `items.py` are its words.

Imports `runtime.control.records`; `runtime.control` owns it.
"""

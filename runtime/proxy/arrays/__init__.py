"""Arrays of clients: types and placements, values on devices, and accounts of their memory.

`array_engine.py` is the base class of their operations, `proxy_array.py` a value.
"""

"""Files of clients' arrays.

`file_store.py` has the base classes of stores, and `local_store.py` the store of this process.
"""

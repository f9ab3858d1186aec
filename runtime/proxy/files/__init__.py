"""Files of clients' arrays.

`file_store.py` has the base classes of what writes and reads them, `local_store.py` those of this process.
"""

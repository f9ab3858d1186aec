"""The operations of the dialect, typed views of them, and readers and writers of their attributes.

`ops.py` declares them, on the base class in `operation.py`.
"""

"""Data in and out of programs besides calls: input, checkpoints, and functions that hosts run.

`prefetch.py`, `checkpoint.py` and `on_hosts.py` have the functions of these names.
"""

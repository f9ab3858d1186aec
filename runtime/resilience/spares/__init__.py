"""Spare workers: processes that have imported JAX and wait to take the place of lost ones.

`spare_core.py` decides, `spare_pool.py` owns the processes. Imports `hosts.launch`.
"""

"""Spare workers: processes that have imported JAX and wait to replace lost workers.

`spare_core.py` is the state machine, `spare_pool.py` owns the processes. Imports `hosts.launch`.
"""

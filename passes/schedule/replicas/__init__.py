"""Passes that create a program for each replica, and lower the exchanges between replicas.

- `replicate.py` copies the program onto the slices of each replica; `shares.py` has the values that it
  splits.
- `sum_carries.py` runs before it, and removes waits between replicas (`linear_carries.py`).
- `lower_all_reduces.py` runs after it, and turns exchanges into launches and transfers, with `exchange.py`,
  `exchange_blocks.py` and `buckets.py`.

Imports `passes.analysis`.
"""

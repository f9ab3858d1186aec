"""Memory of hosts for versions of the state, by calls of functions of their workers.

- `memory_calls.py` makes the calls, and has what becomes of them; `known_islands.py` the islands, which come
  and go; `memory_space.py` decides whether versions fit, `block_copies.py` when blocks are copied.
"""

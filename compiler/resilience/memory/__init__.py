"""Memory of hosts for versions of the state, which workers manage by `runtime.resilience.snapshots`.

- `memory_calls.py` calls functions of workers and reads the replies.
- `known_islands.py` follows the islands that are lost, leave and return.
- `memory_space.py` checks that versions fit; `block_copies.py` copies blocks.
"""

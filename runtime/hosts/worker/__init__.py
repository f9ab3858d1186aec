"""Worker process on a host: runs the host program of each step.

`process.py` is the entry point, `worker_target.py` executes the sends and receives of a plan,
`array_store.py` holds the arrays, `steps_in_progress.py` the current steps, `probes.py` checks other workers,
and `sigterm.py` handles SIGTERM.

Imports `protocol`, `launch` and `trace`.
"""

"""State in files: snapshots in memory (tmpfs), which outlive the worker that writes them, and arrays on disk.

- `array_files.py` reads and writes arrays with tensorstore, for checkpoints.
- `host_snapshots.py` is the folder of one host: versions that are written, committed, read and dropped.
- `block_file.py` is one file of blocks, with checksums; `block_record.py` a block.
- `leftovers.py` finds and removes snapshots of dead processes; `run_names.py` has the names of runs, which
  say whose they are.

A folder has one for each run, that one for each host, and that one for each version:
`pathways-1000/run1/host2/20.1/copy7.blocks`. Imports `runtime.resilience` and `runtime.timelines`; no jax.
"""

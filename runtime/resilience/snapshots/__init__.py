"""Snapshots of the state in files of memory (tmpfs), which outlive the worker that writes them.

- `host_snapshots.py` is the folder of one host: versions that are written, committed, read and dropped.
- `block_file.py` is one file of blocks, with checksums; `block_record.py` a block.
- `leftovers.py` finds and removes snapshots of dead processes; `run_names.py` has the names of runs, which
  say whose they are.
- `worker_snapshots.py` is what a worker does for snapshots: functions that `compiler.resilience` calls by
  name, with checked arguments (`arguments.py`). Workers copy blocks from each other over streams
  (`snapshot_streams.py`) of messages of their own (`messages.py`).

A folder has one for each run, that one for each host, and that one for each version:
`pathways-1000/run1/host2/20.1/copy7.blocks`.
"""

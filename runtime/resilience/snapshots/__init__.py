"""Snapshots of the state in files of memory (tmpfs), which outlive the worker that writes them.

- `worker_snapshots.py` has the functions that `compiler.resilience` calls on workers by name, with checked
  arguments (`arguments.py`). Start there.
- `host_snapshots.py` writes, commits, reads and drops the versions in the folder of one host.
- `block_file.py` is one file of blocks, with checksums; `block_record.py` a block.
- Workers read blocks of other workers over streams (`snapshot_streams.py`) of messages (`messages.py`).
- `leftovers.py` removes snapshots of dead processes; `run_names.py` has the names of runs, which name their
  owners.

Layout: `<folder>/<run>/<host>/<version>/`, such as `pathways-1000/run1/host2/20.1/copy7.blocks`.
"""

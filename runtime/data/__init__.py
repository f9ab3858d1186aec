"""Data of hosts: input batches that workers make, and checkpoints that they read and write.

`batches.py` and `checkpoints.py` are the parts of workers, which `compiler.data` calls by name;
`array_files.py` reads and writes arrays with tensorstore, and `host_files.py` has hosts do so.
"""

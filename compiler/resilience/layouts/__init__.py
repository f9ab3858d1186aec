"""Layouts of the state: which blocks of its arrays each device, host and replica has.

- `step_replicas.py` has the replicas of a step that may run with fewer; `array_layouts.py` the blocks of
  arrays of this process, `host_layouts.py` and `host_replicas.py` the blocks of arrays on hosts.
- `version_records.py` writes and reads the layouts of a version that outlives this process.
"""

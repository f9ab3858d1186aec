"""Layouts of the state: the blocks of its arrays on each device, host and replica.

- `step_replicas.py` loads the programs of a step for fewer replicas.
- `array_layouts.py` has the blocks of arrays of this process, `host_layouts.py` and `host_replicas.py` the
  blocks of arrays on hosts.
- `version_records.py` writes and reads the layouts of a version that outlives this process.
"""

"""Training that goes on by itself after losses: `pw.resilient`.

- `resilient.py` is the loop, which does what the core of `runtime.resilience` decides; `settings.py` checks
  its arguments.
- `step_replicas.py` loads the programs of a step for fewer replicas, and has them run on those that are left.
- `store.py` is the interface of what keeps versions of the state, `local_store.py` keeps them in this
  process; `array_layouts.py` are the blocks of its arrays, of any number of replicas.
- `host_store.py` keeps them in the memory of hosts; `host_layouts.py` are the blocks of its arrays,
  `version_records.py` what another controller has to know to go on from there.
- `source.py` rewinds the source of batches, `disk.py` saves versions through `pw.checkpoint`;
  `run_folder.py` has that folder for one controller at a time.

Imports `compiler.data` and `runtime.resilience`.
"""

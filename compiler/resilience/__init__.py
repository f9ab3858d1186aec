"""Training that goes on by itself after losses: `pw.resilient`.

- `resilient.py` is the loop, which does what the core of `runtime.resilience` decides; `settings.py` checks
  its arguments.
- `step_metrics.py` reads the metrics of steps that were issued ahead.
- `step_replicas.py` loads the programs of a step for fewer replicas, and has them run on those that are left.
- `store.py` is the interface of what keeps versions of the state, `local_store.py` keeps them in this
  process, `host_store.py` in the memory of hosts; `array_layouts.py`, and `host_layouts.py` with
  `host_replicas.py`, are the blocks of their arrays, of any number of replicas, which
  `runtime.plan.block_rows` cuts.
- `version_records.py` is what another controller has to know to go on from the memory of hosts.
- `source.py` rewinds the source of batches, `disk.py` saves versions through `pw.checkpoint`;
  `run_folder.py` has that folder for one controller at a time.

Imports `compiler.data` and `runtime.resilience`.
"""

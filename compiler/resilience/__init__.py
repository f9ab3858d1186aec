"""Training that goes on by itself after losses: `pw.resilient`.

- `resilient.py` is the loop; `settings.py` checks its arguments. `training.py` has the state, while steps are
  tried with it, and `step_metrics.py` the metrics of steps that were issued ahead.
- `recovery_runner.py` does what the core of `runtime.resilience` decides; `last_save.py` saves the state when
  a run ends, and `recovery_spans.py` shows recoveries in traces.
- `store.py` is the interface of what keeps versions of the state. `local_store.py` keeps them in this
  process, `host_store.py` in the memory of hosts, by the parts in `memory`. `layouts` has blocks of arrays.
- `source.py` rewinds the source of batches, `disk.py` saves versions through `pw.checkpoint`;
  `run_folder.py` has that folder for one controller at a time.

Imports `compiler.data` and `runtime.resilience`.
"""

"""Training that recovers from lost islands: `pw.resilient`. Start with `resilient.py`.

- `resilient.py` is the loop; `settings.py` checks its arguments. `training.py` has the state and tells
  whether a failed step has changed it; `step_metrics.py` has the metrics of steps that were issued ahead.
- `recovery_runner.py` carries out the effects of the core in `runtime.resilience`, which decides;
  `last_save.py` saves the state when a run ends, and `recovery_spans.py` shows recoveries in traces.
- `store.py` is the interface of the stores, which keep versions of the state: `local_store.py` in this
  process, `host_store.py` in the memory of hosts, with the modules of `memory`. `layouts` has the blocks of
  arrays.
- `source.py` rewinds the source of batches, `disk.py` saves versions through `pw.checkpoint`;
  `run_folder.py` locks the folder for one controller at a time.

Imports `compiler.data` and `runtime.resilience`.
"""

"""Training that goes on by itself after losses: `pw.resilient`.

- `resilient.py` is the loop, which does what the core of `runtime.resilience` decides; `settings.py` checks
  its arguments, `status.py` is its status.
- `store.py` is the interface of what keeps versions of the state, `local_store.py` keeps them in this
  process.
- `source.py` rewinds the source of batches, `disk.py` saves versions through `pw.checkpoint`.

Imports `compiler.data` and `runtime.resilience`.
"""

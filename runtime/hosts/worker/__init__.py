"""The process on a host: it runs its part of each step.

`process.py` is where it begins, `worker_target.py` what its steps are bound to, `store.py` its arrays,
`underway.py` its current steps, `probing.py` whether other workers live, `sigterm.py` how it ends on SIGTERM.

Imports `protocol`, `launch` and `trace`.
"""

"""The process on a host: it runs its part of each step.

`process.py` is where it begins, `target.py` what its steps are bound to, `store.py` its arrays, `underway.py`
what it is at, `probing.py` whether other workers live, `leaving.py` how it ends when it is asked to.

Imports `protocol`, `launch` and `trace`.
"""

"""Sharing of islands by many clients: a core with a scheduler, which chooses the next step.

- `service_core.py` is the core of a cluster with clients, `scheduler.py` the scheduler, and
  `scheduler_events.py` has its events and effects.

Imports `runtime.control`.
"""

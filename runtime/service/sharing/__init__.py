"""Sharing of islands by many clients: a core with a scheduler, which chooses the next step.

- `service_core.py` is the core of a cluster with clients, `scheduler.py` the scheduler, and
  `scheduler_events.py` has its events and effects.
- `places.py` has the order in which ready steps get islands, and the pool of temporaries; `memory.py` has the
  quotas of clients, and `rules.py` the rules that the file of a cluster and `pw-cluster set` give them.
- `step_limits.py` finds steps that run for too long, and `program_charges.py` counts the losses of islands
  that a program has caused.

Imports `runtime.control`, and sizes and tables of `runtime.resources`.
"""

"""Scheduling of the steps of many clients that share islands.

- `scheduler.py` decides which steps are ready; `scheduler_events.py` has its events and effects.
- `places.py` decides which ready step is issued next.

Imports `runtime.control.records`; `runtime.control` owns it.
"""

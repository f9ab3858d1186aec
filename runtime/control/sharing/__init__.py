"""Scheduling of the steps of many clients that share islands.

- `scheduler.py` chooses the next step; `scheduler_events.py` has its events and effects.

Imports `runtime.control.records`; `runtime.control` owns it.
"""

"""Records of a cluster: events, issued steps and requests, and their outcomes.

- `step.py`: a step, and a call of a function; `window.py`: the steps that may be in flight on an island.
- `replies.py`: requests to hosts and their replies; `reports.py`: reports of hosts about their state.
- `events.py`: events of the cores; `errors.py`: errors; `pending_frees.py`: arrays to free.

Imports `dialect` and `runtime.resources`.
"""

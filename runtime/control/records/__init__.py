"""Records of a cluster: what was seen, what was issued and asked, and what became of it.

- `step.py`: a step, and a call of a function; `window.py`: the steps that may be in flight on an island.
- `replies.py`: requests to hosts and their answers; `reports.py`: what hosts say of themselves.
- `events.py`: what the cores are told; `errors.py`: what goes wrong; `unused.py`: what may be freed.

Imports `dialect` and `runtime.resources`.
"""

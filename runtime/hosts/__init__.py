"""Programs on several hosts: one controller, and a worker on each host that runs its part of each step.

`worker.py` is the process, and `target.py` what its steps are bound to; `controller.py` speaks to all of
them over `wire.py`, in `messages.py`; `array.py` is what the user holds. `tracing.py` and
`worker_tracing.py` are the two ends of a trace.

Imports jax, and all rooms of the runtime.
"""

"""Programs on several hosts: one controller, and a worker on each host that runs its part of each step.

- What both say: `messages.py`, as bytes `frames.py`, over `wire.py`; arrays in pieces: `shards.py` and
  `coming.py`.
- The controller: `connect.py`, `settings.py` and `starting.py` start workers; `controller.py` is what
  programs speak to; `shared_core.py` has the core that decides (`runtime.control`), `hearing.py` tells it
  what workers say, read by `answers.py`, and `acting.py` does what it wants with the processes of
  `islands.py`, of which `host.py` is one; `hosted.py` are programs, `fetching.py` arrays that are coming;
  `array.py` is what the user holds.
- A worker: `worker.py` is the process, `target.py` what its steps are bound to, `store.py` its arrays,
  `underway.py` what it is at, `leaving.py` how it ends when it is asked to, `probing.py` whether other
  workers live, `ready.py` whether it is ready, `cores.py` which cores it has.
- Traces: `tracing.py` and `worker_tracing.py` are their two ends, `clocks.py` and `merging.py` put them
  together; `describing.py` tells what XLA made of programs.

Imports jax, and all rooms of the runtime.
"""

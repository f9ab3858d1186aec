"""Workers that a process has started, for a client or for a service.

- `worker_cluster.py` has all of it. `shared_core.py` has the core that decides (`runtime.control`);
  `worker_listener.py` turns what workers send, read by `event_loop.py`, into its events, and
  `effect_runner.py` carries out what it wants. `answers.py` are the sinks of what workers are asked for.
- `starting.py` starts workers and refuses others. `worker_pool.py` has the workers that there are, each a
  `host.py`; `hosted.py` are programs on them.

Imports `protocol`, `launch`, `spares`, `splitting` and `trace`.
"""

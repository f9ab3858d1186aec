"""Workers that a process has started, for a client or for a service.

- `worker_cluster.py` puts the others together. `shared_core.py` holds the core that decides
  (`runtime.control`); `worker_listener.py` turns messages of workers, which `event_loop.py` reads, into
  events for the core, and `effect_runner.py` carries out its effects. `reply_sinks.py` receives replies of
  workers, and `round_trips.py` measures how long replies take.
- `starter.py` starts workers and rejects all other connections. `worker_pool.py` holds the current workers,
  `host.py` describes one worker and the gang of an island; `hosted_program.py` describes programs on them.

Imports `protocol`, `launch` and `splitting`.
"""

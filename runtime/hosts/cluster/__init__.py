"""The workers of a cluster as programs and arrays see them, whoever has started them.

- `controller.py` is what programs speak to; `hosted.py` are programs, `array.py` is what the user holds.
- `shared_core.py` has the core that decides (`runtime.control`). `worker_listener.py` turns what workers say,
  read by `event_loop.py`, into its events; `answers.py` is where they send what they were asked for.
  `islands.py` has the workers that there are, each of them a `host.py`.

Imports `protocol`, `splitting` and `trace`.
"""

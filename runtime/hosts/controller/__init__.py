"""The process of the user: it starts workers, and tells them what to run.

- `connect.py` chooses the devices that programs use, `starting.py` starts workers and refuses others.
- `controller.py` is what programs speak to; `hosted.py` are programs, `array.py` is what the user holds.
- `shared_core.py` has the core that decides (`runtime.control`). `listener.py` turns what workers say, read
  by `answers.py`, into its events; `effect_runner.py` carries out its effects with the processes of
  `islands.py`, each of them a `host.py`. `fetching.py` are arrays on their way.

Imports `protocol`, `launch` and `trace`.
"""

"""The process of the user: it starts workers, and tells them what to run.

- `connect.py` chooses the devices that programs use, `starting.py` starts workers and lets nobody else in.
- `controller.py` is what programs speak to; `hosted.py` are programs, `array.py` is what the user holds.
- `shared_core.py` has the core that decides (`runtime.control`). `hearing.py` tells it what workers say, read
  by `answers.py`; `acting.py` does what it wants with the processes of `islands.py`, of which `host.py` is
  one. `fetching.py` are arrays that are coming.

Imports `protocol`, `launch` and `trace`.
"""

"""The workers of a cluster as programs and arrays see them, whoever has started them.

- `controller.py` is what programs speak to; `hosted.py` are programs, `array.py` is what the user holds.
- `shared_core.py` has the core that decides (`runtime.control`). `listener.py` turns what workers say, read
  by `answers.py`, into its events. `islands.py` has the workers that there are, each of them a `host.py`.
  `fetching.py` are arrays on their way.

Imports `protocol`, `splitting` and `trace`.
"""

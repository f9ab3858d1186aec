"""The process of the user: it starts workers, or attaches to those of a service.

- `connect.py` chooses the devices that programs use, `starting.py` starts workers and refuses others.
- `own_controller.py` is the controller of workers that were started here; `effect_runner.py` carries out what
  its core wants with processes and connections.

Imports `cluster`, `attached` and `launch`.
"""

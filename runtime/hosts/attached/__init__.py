"""A client of a service: its controller reaches workers through one connection to it.

- `attached_controller.py` is what programs speak to, `attaching.py` makes it.
- `cluster_mirror.py` is what the client knows of the islands: a core that does as the service tells it, by
  way of `service_listener.py`.
- `relayed.py` are workers to which the service passes on what they are told; `shared_slices.py` asks it for
  devices.

Imports `protocol`, `launch`, `cluster` and `trace`.
"""

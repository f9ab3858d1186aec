"""Client of a cluster: what programs, arrays and `pw.connect` use, with workers of their own or of a service.

- `connect.py` chooses the devices that programs use; `client.py` dispatches to them, `array.py` is the handle
  that users hold.
- `host_session.py` is the session of a client, `local_session.py` with workers of this process and
  `remote_session.py` with a service, to which `attaching.py` connects.
- With a service, `service_listener.py` keeps the copy of its state (`control.cluster_mirror`) up to date;
  `relayed.py` are the workers, to which it passes messages on, and `device_allocator.py` requests devices.

Imports `protocol`, `launch`, `cluster` and `trace`.
"""

"""Client of a cluster: what programs and arrays use, with workers of their own or of a service.

- `client.py` dispatches to them, and `array.py` is the handle that users hold.
- `host_session.py` is the session of a client, and `local_session.py` that with workers of this process.

Imports `protocol`, `launch` and `cluster`.
"""

"""Session with hosts, which programs and arrays use; its workers belong to this process or to a service.

- `host_session.py` issues steps and calls, and waits for them; `local_session.py` does so with workers of
  this process.
- `calls.py` makes the messages of calls.
- `array.py` is the handle that users hold, and `array_fetch.py` decides which of its copies are read;
  `relocation.py` moves arrays from hosts to hosts.

Imports `protocol`, `launch` and `cluster`.
"""

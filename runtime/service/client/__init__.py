"""Client of a service: a session over its connections, and the mirror of its core that decides for it.

`attaching.py` connects; `remote_session.py` is the session.
"""

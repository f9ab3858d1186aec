"""Server of sessions: sockets and threads around the state machines of connections and sessions.

One thread accepts connections. Each connection has a thread that reads it, and one that writes if the client
does not read fast enough. Each session has a thread that dispatches its requests in order, and some that wait
for arrays and compile, so that the dispatching thread never waits for a device.

Imports jax and the rooms of the runtime to its left.
"""

"""Server of sessions: sockets and threads around the state machines of connections and sessions.

One thread accepts connections, one reads each of them, one dispatches each session in the order of its
stream, and a few wait for arrays and compile, so that the dispatching thread never waits for a device. One
more writes to a client that does not read.

Imports jax and the rooms of the runtime to its left.
"""

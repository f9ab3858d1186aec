"""What decides in the distributed half: cores without clock, socket, thread or chance of their own.

A core takes events, which say what was seen, and returns effects, which say what is to be done; the time is
an argument. `core.py` puts all cores of a cluster together, and is the one object that holds its state:
`gang.py` the life of the workers of an island, `steps.py` what was issued and what became of it, `peers.py`
which hosts do not reach each other, `liveness.py` and `stalls.py` what takes too long. `records` has the
records that they share, `effects.py` what they want to be done. Where many clients share the islands, the
scheduler of `sharing` decides whose step is next.

Rules. Calls of one core come one after the other: its shell holds one lock round them. No call waits.
Whatever an event says, it has an answer in every state; what is late, such as word of workers that were
replaced, changes nothing. Steps are the hot path: `issue` and `done` are plain calls, and only what goes
wrong comes back as effects.

The same cores run under `runtime.hosts`, which does what effects say with processes and sockets, and under
random histories in tests, where `runtime.simulate.events` has the clock and the links. Imports
`runtime.resources`; never jax, sockets or messages.
"""

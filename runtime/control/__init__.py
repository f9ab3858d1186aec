"""Cores of the distributed runtime: they decide, without a clock, socket, thread or randomness.

A core accepts events, the reports of its shell, and returns effects for the shell to carry out; the time is
an argument. `cluster_view.py` is the state that each process has that issues steps, `core.py` the one that
decides, which contains all other cores of a cluster.
`gang.py` is the life of the workers of an island, `steps.py` the issued steps and their outcome,
`peer_reports.py` finds hosts that do not reach each other, `liveness.py` and `stalls.py` hosts and steps
without progress. `records` has the records that they share, `effects.py` the effects.

Rules. A core handles one call at a time: its shell holds a lock around each. No call waits. Every event has a
defined outcome in every state; late events, such as reports of replaced workers, change nothing. Steps are
the hot path: `issue` and `done` are plain calls, and only failures return effects.

The same cores run under `runtime.hosts`, which carries out effects with processes and sockets, and under
random histories in tests, where `runtime.simulate.events` has the clock and the links. Imports
`runtime.resources`; never jax, sockets or messages.
"""

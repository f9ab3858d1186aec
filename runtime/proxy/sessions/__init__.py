"""Sessions of clients: the values of their handles, and the replies to the requests of their streams.

`session` dispatches requests and orders replies, `state` has the values of handles. The handlers of requests
are functions of that state. Imports jax and the rooms of the runtime to its left.
"""

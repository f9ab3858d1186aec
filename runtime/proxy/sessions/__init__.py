"""Sessions of clients: what the handles of each stand for, and the reply to each request of its stream.

`session` dispatches requests and orders replies, `state` is what handles stand for. The handlers of requests
are functions of that state. Imports jax and the rooms of the runtime to its left.
"""

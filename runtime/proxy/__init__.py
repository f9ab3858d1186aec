"""Server for the IFRT proxy client of every jaxlib: unmodified JAX programs on devices of this process.

`wire` is the protocol. `session` is a state machine, `serving` has its sockets and threads. Imports jax and
the rooms of the runtime to its left; never `hosts`, nor the compiler.
"""

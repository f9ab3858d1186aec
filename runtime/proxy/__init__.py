"""Server for the IFRT proxy client of every jaxlib: unmodified JAX programs on devices of this process.

`grpc_connection` and `session` are state machines, `serving` has their sockets and threads. Imports jax and
the rooms of the runtime to its left; never `hosts`, nor the compiler.
"""

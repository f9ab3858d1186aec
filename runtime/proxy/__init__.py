"""Server for the IFRT proxy client of every jaxlib: unmodified JAX programs on devices of this process.

This room has devices and programs. `wire` is the protocol, `arrays` has the values of clients, `reading`
parses programs in another process, `sessions` has the state machines, `serving` their sockets and threads.
Imports jax and the rooms of the runtime to its left; never `hosts`, nor the compiler.
"""

"""Server for the IFRT proxy client of every jaxlib: unmodified JAX programs on devices of this process.

Here are devices, arrays and programs. `wire` is the protocol, `reading` has programs parsed in another
process, `sessions` are state machines, `serving` has their sockets and threads. Imports jax and the rooms of
the runtime to its left; never `hosts`, nor the compiler.
"""

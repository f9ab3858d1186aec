"""Reading of clients' programs in separate processes: MLIR's reader of bytecode does not check its input.

`program_reader` runs in the server, `read_process` in the processes that it starts, without jax. Imports jax
and the rooms of the runtime to its left.
"""

"""Programs of clients read by MLIR in processes of their own: its reader of bytecode trusts what it reads.

`program_reader` is in the server, `read_process` is what it starts, which imports no jax. Imports jax and the
rooms of the runtime to its left.
"""

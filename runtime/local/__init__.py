"""Backend of this process: its JAX devices, and the programs that are loaded, run and traced on them.

Imports jax, and all rooms of the runtime to its left.
"""

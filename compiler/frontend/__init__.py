"""Front end from Python to a module: JAX's StableHLO, and annotations for the compiler.

`trace.py`, to read first, traces a function; `annotate.py` writes slices and loops into its module.
"""

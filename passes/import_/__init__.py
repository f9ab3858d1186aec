"""Import phase: from the StableHLO that JAX lowers a program to, to launches in `@main`.

Imports `passes.analysis`; programs of Shardy's MPMD compiler, which come partitioned, are imported by `mpmd`.
"""

"""From Python to a module: what JAX traces, and what is said beside its StableHLO."""

"""Front end from Python to a module: JAX's StableHLO, and annotations for the compiler."""

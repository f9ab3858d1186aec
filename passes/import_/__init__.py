"""From the StableHLO that JAX lowers a program to, to launches in `@main`. Imports `passes.analysis`."""

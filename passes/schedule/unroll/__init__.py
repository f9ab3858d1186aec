"""Unrolls loops, such as those over microbatches. Imports `passes.analysis`."""

"""Unrolling of loops over microbatches and of other loops. Imports `passes.analysis`."""

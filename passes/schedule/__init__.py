"""Unrolls loops over microbatches, orders the work of each slice, and plans memory. Imports `passes.util`."""

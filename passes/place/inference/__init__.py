"""Inference of a slice for every operation, by a minimum cut. Imports `passes.import_.branches`."""

"""Gives everything a slice, and makes computations and transfers of it. Imports `passes.analysis`."""

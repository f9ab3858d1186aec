"""Decides how values lie over their slices, and how they move between them. Imports `passes.analysis`."""

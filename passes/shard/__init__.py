"""Shard phase: decides shardings, and lowers transfers between them. Imports `passes.analysis`."""

"""Splits updates of parameters over replicas, as in ZeRO-1. Imports `passes.analysis`."""

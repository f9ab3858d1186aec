"""Splits backwards into halves: gradients of inputs, and of weights. Imports `passes.schedule.policies`."""

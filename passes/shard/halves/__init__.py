"""Halves of backwards: gradients of inputs, and of weights. Imports `passes.schedule.policies`."""

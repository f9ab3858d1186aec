"""Halves of backwards: gradients of inputs, and of weights. Imports `passes.schedule.policies`.

`split_backward.py` is the pass, and `halves.py` the cut.
"""

"""Splits backward computations into the gradient of inputs and that of weights. Imports `passes.schedule`."""

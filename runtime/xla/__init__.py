"""XLA as this runtime uses it: private calls of jaxlib, compilation, stored code, memory of the host."""

"""XLA as this runtime uses it: private calls of jaxlib, compilation, stored code.

Imports jax, plans, bundles and resources.
"""

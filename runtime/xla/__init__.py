"""XLA as this runtime uses it: private calls of jaxlib, compilation, stored code.

Imports jax, plans and what a bundle says of artifacts.
"""

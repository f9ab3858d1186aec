"""Bundles: compiled programs in files, their format, and the checks of untrusted ones.

Imports plans and the passes; never jax.
"""

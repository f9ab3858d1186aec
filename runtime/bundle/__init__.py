"""Compiled programs in a file: its format, and what is checked of it. Imports what is left of it; never jax.

The rooms of the runtime, from left to right: plan, timelines, bundle, resources, simulate, xla, local.
"""

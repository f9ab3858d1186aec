"""Compiled programs in a file: its format, and what is checked of it. Never imports jax.

Imports plans and the passes.
"""

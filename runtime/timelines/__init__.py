"""Timelines: the events of a step by slice and time, and their reports, pages and pictures.

Imports plans; never jax.
"""

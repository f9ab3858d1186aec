"""Timelines of steps: their events by slice and time, with reports, pages and pictures.

Imports plans; never jax.
"""

"""Replays plans with durations and links of one's choice. Imports plans and timelines; never jax."""

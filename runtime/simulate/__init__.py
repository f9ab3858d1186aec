"""Replays plans with durations and links of one's choice. Never imports jax. Imports plans and timelines."""

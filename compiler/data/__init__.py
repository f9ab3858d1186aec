"""Data in and out of programs besides calls: input, checkpoints, and functions that hosts run."""

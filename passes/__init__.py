"""The passes, in a room for each phase, and their manager. Imports the dialect alone; never jax."""

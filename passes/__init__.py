"""The passes, in a room for each phase, and what runs them. Imports the dialect alone; never jax."""

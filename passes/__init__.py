"""The passes, one file each, and what runs them. Never imports jax."""

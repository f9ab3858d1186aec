"""Cuts programs into what each island runs of them; parses programs, and imports no jax."""

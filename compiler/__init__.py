"""Compile driver: the public API and the stages of a program. JAX is traced in this package alone."""

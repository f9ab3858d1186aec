"""The compile driver: what users call, and the stages of a program; only here and below is JAX traced."""

"""Plans: scheduled programs as plain data, how they are made of the IR, and the lives of their slots.

Imports the dialect and the passes; never jax, which the rooms of the runtime up to `simulate` do without.
From left to right these are plan, timelines, bundle, resources, simulate, xla, local; each imports only what
is to its left.
"""

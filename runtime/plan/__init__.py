"""Plans: scheduled programs as plain data, and how they are made of the IR.

Imports the dialect and the passes; never jax.
"""

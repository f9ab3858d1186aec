"""Plans: scheduled programs as plain data, their lowering from the IR, and the lifetimes of their slots.

Imports the dialect and the passes; never jax, which no room of the runtime up to `simulate` imports.
"""

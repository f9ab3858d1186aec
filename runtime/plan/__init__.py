"""Plans: scheduled programs as plain data, their lowering from the IR, the lifetimes of their slots, and
the rows of arrays that shards and blocks have.

Imports the dialect and the passes; never jax, which no room of the runtime up to `simulate` imports.
"""

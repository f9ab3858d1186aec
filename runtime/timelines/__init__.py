"""What ran where and when in a step: events and figures, reports, pages and trace files. Never imports jax.

`events` is the data, and imports nothing of what is made of it. Imports plans.
"""

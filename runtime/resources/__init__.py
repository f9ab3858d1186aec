"""Virtual slices, clusters of devices, and which slice has which devices. Plain data; never imports jax.

How devices are discovered is handed in from the right. Imports plans.
"""

"""Virtual slices, islands of devices, and which slice has which devices. Never imports jax."""

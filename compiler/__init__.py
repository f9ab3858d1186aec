"""The JAX front end and the compile driver: the only place that traces JAX."""

"""The backend of this process: binds plans to its JAX devices, and runs them."""

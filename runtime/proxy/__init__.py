"""Server for the IFRT proxy client of every jaxlib: unmodified JAX programs on devices of this process."""

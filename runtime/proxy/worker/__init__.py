"""Programs of the proxy in workers: XLA programs, and views of arrays, as `LoadForeign` requests them."""

"""Programs of Shardy's MPMD front end, and the slices of their topologies."""

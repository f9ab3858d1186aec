"""Programs of Shardy's MPMD front end: what it hands over, and the slices of their topologies."""

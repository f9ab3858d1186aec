"""Makes a program of each replica, and lowers the sums that replicas exchange. Imports `passes.analysis`."""

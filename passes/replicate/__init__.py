"""Makes a program of each replica, and lets replicas exchange sums. Imports `passes.analysis`."""

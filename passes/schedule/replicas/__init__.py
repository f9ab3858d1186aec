"""Programs of replicas, and the sums that replicas exchange. Imports `passes.analysis`."""

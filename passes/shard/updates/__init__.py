"""Updates of parameters that are split over replicas, as in ZeRO-1. Imports `passes.analysis`."""

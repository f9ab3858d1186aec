"""`pw.auto`: cuts a loss into stages on slices, for the shortest simulated step."""

"""`pw.auto`: a loss becomes stages on slices, cut where a simulated step is shortest."""

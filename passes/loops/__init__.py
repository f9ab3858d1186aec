"""Unrolls loops over microbatches before they are scheduled; sums, fuses and shares their launches after."""

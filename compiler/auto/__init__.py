"""`pw.auto`: cuts a loss into stages on slices, for the shortest simulated step.

`auto.py`, to read first, is the function; `search.py` chooses among the cuts of `partition.py`, which
`trials.py` simulates.
"""

"""Search for orders of actions that take little time within limits on memory. Knows no IR.

`scheduling_problem` states the problem, `replay` finds the time of an order, `construct` builds orders by
rules, `improve` changes them, `exact` runs a solver, and `search` does one after the other.
"""

"""Looks for orders of actions that take little time within limits on memory. Knows no IR.

`problem` says what is looked for, `replay` how long an order takes, `construct` makes orders by rules,
`improve` changes them, `exact` asks a solver, and `search` does one after the other.
"""

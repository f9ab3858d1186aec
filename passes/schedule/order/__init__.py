"""Orders of the work of each slice, by a policy, a file or a search. Imports `passes.schedule.search`.

`schedule.py` is the pass; `ordering.py` applies a policy, and `positions.py` numbers the result.
"""

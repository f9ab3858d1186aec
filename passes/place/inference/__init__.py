"""Inference of a slice for every operation, by a minimum cut. Imports `passes.import_.branches`.

`infer_placement.py` is the pass; `placement_problem.py` states its problem, which `homes.py` and `cut.py`
solve.
"""

"""Relations between the operations of a program, and the proof of the order in which they run.

`relations.py` has the relations, `order.py` the proof.
"""

"""The forms of the IR, and the verifier, which checks operations, forms and relations.

`forms.py`, to read first, is a table, which `verifier.py` applies.
"""

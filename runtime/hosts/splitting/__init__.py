"""Cuts programs into what each island runs of them; parses programs, and imports no jax.

`splitting.py` cuts. `splitter.py` has that done, with the proof, in a process of its own, `split_process.py`;
`split_pipe.py` is what both say.
"""

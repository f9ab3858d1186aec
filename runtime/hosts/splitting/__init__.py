"""Splitting of scheduled programs into a program for each island; parses programs, and imports no jax.

`splitting.py` splits. `splitter.py` runs that, with the proof, in a separate process, `split_process.py`;
`split_pipe.py` has the messages between them.
"""

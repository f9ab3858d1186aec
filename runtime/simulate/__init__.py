"""Simulation of plans, and of processes with links between them. Never imports jax.

`replay.py` replays a plan with any durations and links, which `times.py` reads; both import plans and
timelines. `events.py` has simulated time and links for models of many processes: tests and benchmarks
simulate hosts around the cores of `runtime.control` with them.
"""

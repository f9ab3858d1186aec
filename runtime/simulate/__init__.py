"""What would happen, without doing it. Never imports jax.

`replay.py` replays a plan with durations and links of one's choice, which `times.py` reads; they import plans
and timelines. `events.py` has time and links for models of many processes, such as the hosts under which
tests put the cores of `runtime.control`, and benches, which simulate how fast control is.
"""

"""Programs on several hosts: one controller, and a worker on each host that runs its part of each step.

`worker.py` is the process; `controller.py` speaks to all of them; `array.py` is what the user holds.
"""

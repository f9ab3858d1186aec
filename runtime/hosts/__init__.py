"""Programs on several hosts: one controller, and a worker on each host that runs its part of each step.

`controller` is the process of the user, `worker` that of a host; `protocol` is what both say, `launch` how
workers get to run, `trace` what they tell of when it was. `service` is a controller that many processes
share. What the controller decides it asks `runtime.control`. Imports jax, and all rooms of
the runtime to its left.
"""

"""Programs on several hosts: one controller, and a worker on each host that runs its program of each step.

`client` is the process of the user, `worker` that of a host, `cluster` the workers as the process sees them
that has started them: a client, or a service. `protocol` has the messages, `launch` starts
workers, `splitting` cuts a program into those of its islands. Decisions are those of `runtime.control`.
Imports jax, and all rooms of the runtime to its left.
"""

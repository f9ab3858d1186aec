"""Programs on several hosts: one controller, and a worker on each host that runs its program of each step.

`client` is the process of the user, and `worker` the process of a host. `cluster` represents the workers in
the process that has started them: a client, or a service. `protocol` has the messages, `launch` starts
workers, and `splitting` cuts a program into one for each island. `runtime.control` makes the decisions.
Imports jax, and all rooms of the runtime to its left.
"""

"""A controller in a process of its own, whose islands many clients share; it imports no JAX.

- `configuration.py` reads the file that describes a cluster.
- `daemon.py` is how the process begins and ends, its door, and what it does for `pw-cluster`; `process.py`
  is run.
- `service.py` is the controller: it admits clients (`served_client.py`), and its dispatch thread reads what
  has an order, checks what clients ask for (`requests.py`), tells the core of the cluster, whose scheduler
  says what is next, and sends steps.
- `relayed_answers.py` passes on what workers say, `sending.py` sends it, `relayed_traces.py` says to whom a
  trace is of interest. `incoming_arrays.py` are arrays that clients send, `questions.py` what else they ask,
  `bound_slices.py` which devices the slices of all have.

The folder of a cluster, in which clients find its service, is `launch/folders.py`.

Imports `protocol`, `launch`, `splitting`, `trace`, `cluster` and `controller`.
"""

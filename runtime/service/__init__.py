"""A controller in a process of its own, whose islands many clients share; it imports no JAX.

- `configuration.py` reads the file that describes a cluster.
- `daemon.py` runs the process of a service, its acceptor, and the requests of `pw-cluster`; `process.py` is
  its entry point.
- `service.py` is the controller: it admits clients (`admission.py`, `served_client.py`), and its dispatch
  thread reads their ordered requests, checks them (`request_parser.py`), passes them to the core of the
  cluster, whose scheduler chooses the next step, and sends steps.
- `step_reports.py` has the steps in flight, and reports them to clients.
- `island_views.py` describes islands to clients, and in the status.
- `relayed_calls.py` has the calls of functions in flight. `relayed_replies.py` relays replies of workers to
  clients, `array_sender.py` sends them in separate threads, and `relayed_traces.py` relays traces.
  `incoming_arrays.py` relays arrays that clients send, `control_requests.py` handles their unordered
  requests, and `bound_slices.py` binds the slices of all clients to devices.

`client` is the session of a client, `protocol` what clients and service send each other, and `sharing`
decides whose step is next. Imports `runtime.control` and the rooms of `runtime.hosts`.
"""

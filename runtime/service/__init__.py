"""A controller in a separate process, whose islands many clients share; it imports no JAX.

- `configuration.py` reads the file that describes a cluster.
- `daemon.py` runs the process of a service, its acceptor, and the requests of `pw-cluster`; `process.py` is
  its entry point.
- `service.py` is the controller: it admits clients (`admission.py`), and its dispatch thread reads their
  ordered requests, passes them to the core of the cluster, whose scheduler chooses the next step, and sends
  steps.
- `step_reports.py` has the steps in flight, and reports them to clients.
- `relayed_calls.py` has the calls of functions in flight. `relayed_replies.py` relays replies of workers to
  clients, `array_sender.py` sends them in separate threads, and `relayed_traces.py` relays traces.
  `incoming_arrays.py` relays arrays that clients send, and `control_requests.py` handles their unordered
  requests.

`client` is the session of a client, `served` has the clients as the service sees them, with their slices, and
the drains of islands, `protocol` the messages between both, and `sharing` decides whose step is next. Imports
`runtime.control` and the rooms of `runtime.hosts`.
"""

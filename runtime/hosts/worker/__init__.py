"""Worker of a host: runs the host program of each step, calls functions, receives and sends arrays.

`worker.py` has the threads and the handlers of messages, `worker_target.py` executes the sends and receives
of a plan, `array_store.py` holds the arrays, `call_runner.py` runs calls, `steps_in_progress.py` has the
current steps, `probes.py` checks other workers, and `sigterm.py` handles SIGTERM. Extensions add handlers of
their own; `runtime.clusters.worker_process` starts a worker with all of them.

Imports `protocol` and `launch`.
"""

"""Traces and timelines: the steps of programs by slice and time, planned, simulated or measured.

- `timeline.py` has the events of a step, with `report.py`, `page.py` and `picture.py`.
- `recorder.py` records the times of calls, and takes the times of launches from XLA (`profile.py`);
  `call_timeline.py` makes a timeline of them, and `file_trace.py` writes it (`pw.trace`).
- `host_traces.py` makes workers record (`worker_recording.py`), translates their times to one clock
  (`clocks.py`), and merges them by the plan of the whole program (`merging.py`).
- `proxied_traces.py` reads the times of calls from the server of this process (`pw-proxy`).
"""

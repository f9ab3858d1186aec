"""Arrays and programs of clients on hosts: the front has handles, specs and views, workers the buffers.

`hosts_engine.py` has the arrays, `hosts_backend.py` the devices and programs.
"""

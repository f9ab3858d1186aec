"""Backends of programs: loaders for the devices of this process or of hosts, and their executables.

`backend.py` loads programs; `local_executable.py`, `hosts_executable.py` and `served_executable.py` run them.
"""

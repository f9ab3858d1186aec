"""Clusters of programs: this process, hosts of its own, or hosts of a service.

`connect.py` chooses, and `cluster_status.py` shows it. Here a session (`connect.py`) and a worker
(`worker_process.py`) get their extensions: nothing else imports them all.
"""

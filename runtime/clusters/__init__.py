"""Devices that programs use: this process, started workers, or a service.

`connect.py` chooses, and `cluster_status.py` shows it. Here a session (`connect.py`) and a worker
(`worker_process.py`) get their extensions: nothing else imports them all.
"""

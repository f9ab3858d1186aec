"""Servers of unmodified JAX programs: `proxy.py` for `pw-proxy`, `cluster_run.py` for `pw-cluster run`."""

"""Metrics and a page of a cluster, which a helper process serves from snapshots of the service.

- `snapshots`: a snapshot, and what its readers compute from a row of them.
- `exposition`: a snapshot as metrics of Prometheus.
- `page`: a snapshot as a page, with `page.css` and `page.js`.
- `server`: the HTTP server.
- `helper`: the process that runs it.
- `feed`: what the service runs: it starts the helper, and sends it snapshots.
"""

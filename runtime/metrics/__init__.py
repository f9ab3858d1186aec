"""Metrics and a page of a cluster, which a helper process serves from snapshots of the service.

- `snapshots`: a snapshot, and the use of islands that a row of snapshots shows.
- `exposition`: a snapshot as metrics of Prometheus.
- `page`: a snapshot as a page, with `page.css` and `page.js`.
- `server`: the HTTP server.
- `helper`: the process that runs it.
- `feed`: the part in the service: it starts the helper, and sends it snapshots.

It imports `runtime.resources` alone, and is imported by the process of the service.
"""

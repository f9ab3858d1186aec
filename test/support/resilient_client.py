"""Client of a service that trains with `pw.resilient`, in a process of its own.

    resilient_client.py SOCKET TOKEN NAME STEPS

It prints the number of each step, and in the end the digest of all metrics and of the state.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
from resilient_training import batches, digest, stages, train

import pathways as pw
from pathways.runtime.clusters import connect
from pathways.runtime.service.client.attaching import Attachment, attach_at


def main() -> int:
    place, token, name, count = sys.argv[1:]
    attachment = Attachment("test", name)
    connect.start_session = lambda _: connect.with_extensions(
        attach_at(place, Path(token).read_bytes(), attachment)
    )
    pw.connect(hosts=2)
    step, state = stages()
    source = batches(int(count))
    with pw.resilient(step, state, source, every=3) as run:
        metrics = train(run, {n: lambda n=n: print(n, flush=True) for n in range(len(source))}, len(source))
        print(digest(metrics, jax.device_get(run.state)), flush=True)
    pw.disconnect()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Extension of workers that serves the proxy."""

from __future__ import annotations

import functools

from pathways.runtime.hosts.worker.worker import Worker
from pathways.runtime.proxy.worker.device_facts import encode_all
from pathways.runtime.proxy.worker.foreign import UnprovedArrays, own_devices
from pathways.runtime.proxy.worker.kinds import DETAILS, DEVICES, VIEW, XLA
from pathways.runtime.proxy.worker.view_programs import load_view
from pathways.runtime.proxy.worker.xla_programs import load_xla, read_details


def serve_proxy(worker: Worker) -> None:
    """Adds the loaders of the proxy to a worker."""
    unproved = UnprovedArrays()
    worker.loaders[DEVICES] = lambda _: (None, encode_all([*own_devices(worker).values()]))
    worker.loaders[VIEW] = functools.partial(load_view, worker, unproved)
    worker.loaders[XLA] = functools.partial(load_xla, worker, unproved)
    worker.loaders[DETAILS] = functools.partial(read_details, worker)

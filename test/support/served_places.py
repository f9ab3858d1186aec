"""Servers of `pw-proxy` in the process of a test, with devices in one process or on hosts."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import jax
import pytest

import pathways.proxy
from pathways.proxy import ProxyServer
from pathways.runtime.clusters.connect import start_session
from pathways.runtime.hosts.launch.launcher_choice import settings_of
from pathways.runtime.hosts.launch.settings import Island
from pathways.runtime.proxy.hosted.hosts_backend import HostsBackend

PLACES = ("one process", pytest.param("hosts", marks=pytest.mark.hosts))
"""Places of devices, as parameters of a fixture."""


def serve(where: str, folder: Path) -> AbstractContextManager[ProxyServer]:
    """Starts a server of two slices: of the devices of this process, or islands of two hosts.

    Args:
      where: one of `PLACES`.
      folder: the folder of its socket.
    """
    path = folder / "socket"
    if where == "hosts":
        backend = HostsBackend(start_session(settings_of(None, islands=[Island(2, 2)] * 2)))
        return pathways.proxy.serve(path, backend=backend)
    return pathways.proxy.serve(path, jax.devices("cpu"), islands=2)

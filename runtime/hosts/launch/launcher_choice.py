"""Validation of the keywords of `pathways.connect`, and the choice of a launcher."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from pathways.runtime.hosts.launch.child_launcher import Spawner
from pathways.runtime.hosts.launch.commands import DEFAULT_START, StartCommand
from pathways.runtime.hosts.launch.join_launcher import JoinLauncher, secret_of
from pathways.runtime.hosts.launch.launcher import Launcher, SpareWorkers
from pathways.runtime.hosts.launch.options import HostOptions
from pathways.runtime.hosts.launch.ray_launcher import RayLauncher
from pathways.runtime.hosts.launch.settings import Settings, islands_of
from pathways.runtime.hosts.launch.slurm import SLURM_START, islands_on, nodes_of, own_address

LAUNCHERS = ("ray", "slurm", "join")


def settings_of(
    launcher: str | None,
    *,
    hosts: int | Sequence[str] | None = None,
    devices_per_host: int = 1,
    islands: Any = None,
    address: str | None = None,
    bind: str | None = None,
    start: str | None = None,
    python: str | None = None,
    secret_file: str | None = None,
    platform: str | None = None,
    options: HostOptions | None = None,
) -> Settings:
    """Returns the settings for keywords of `pathways.connect`; see there.

    Raises:
      TypeError: `islands` has an element that is no island.
      ValueError: a setting is not valid, or cannot be combined with another.
    """
    if launcher is not None and not (isinstance(launcher, str) and launcher in LAUNCHERS):
        instead = "" if isinstance(launcher, str | bool) else f"; did you mean hosts={launcher!r}?"
        raise ValueError(f"connect({launcher!r}): expected 'ray', 'slurm', 'join', or nothing{instead}")
    if launcher != "ray" and address is not None:
        raise ValueError("connect: address= is for Ray clusters: use connect('ray', address=...)")
    if launcher == "slurm":
        if hosts is not None:
            raise ValueError(
                "connect('slurm'): hosts are the nodes of the allocation; pass islands=, or nothing"
            )
        nodes = nodes_of(os.environ)
        islands = islands_on(nodes, islands, devices_per_host)
        start = SLURM_START if start is None else start
        bind = own_address(os.environ, len(nodes)) if bind is None else bind
        launcher = None
    if launcher == "ray" and not isinstance(islands, Sequence):
        raise ValueError(f"connect({launcher!r}): expected islands=[pathways.Island(...), ...]")
    if launcher == "join" and hosts is None and not isinstance(islands, Sequence):
        raise ValueError("connect('join'): expected hosts=, or islands=[pathways.Island(...), ...]")
    requested = islands_of(islands, hosts, devices_per_host)
    bind = bind or ("127.0.0.1" if launcher == "ray" else None)
    named = any(machine is not None for island in requested for machine in island.machines)
    command = None
    if named or start is not None or python is not None:
        command = StartCommand(DEFAULT_START if start is None else start, python)
    return Settings(
        requested, options or HostOptions(), bind, command, platform or "cpu", launcher, address, secret_file
    )


def launcher_of(settings: Settings, spares: SpareWorkers) -> Launcher:
    """Returns the launcher of workers.

    Args:
      spares: the spare workers; only children of this process can be spares.

    Raises:
      HostError: the launcher cannot be created, for instance because a port is taken.
      OSError: the secret file cannot be read.
      ValueError: other users may read the secret file, or it is too short.
    """
    if settings.launcher is None:
        return Spawner(settings.start, spares)
    endpoints, hosts = settings.endpoints, settings.hosts
    if settings.secret_file is not None:
        assert endpoints.ports is not None
        ports = endpoints.ports[:1] * 2
        return JoinLauncher("join", endpoints, ports, secret_of(settings.secret_file), hosts)
    return RayLauncher(settings.address, endpoints, hosts, settings.cores)


def start_description(settings: Settings) -> str:
    """Returns a line on a start of workers, as in `starting 3 hosts with Ray`."""
    match settings.launcher:
        case "ray":
            return f"starting {settings.hosts} hosts with Ray"
        case "join":
            return f"waiting for {settings.hosts} hosts to join at {settings.endpoints.join_address}"
    return f"starting {settings.hosts} hosts"

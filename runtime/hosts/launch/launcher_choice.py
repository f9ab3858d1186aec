"""Settings of workers for the hosts and launcher that a user requests, and the launcher that runs them."""

from __future__ import annotations

import os

from pathways.runtime.hosts.launch.child_launcher import Spawner
from pathways.runtime.hosts.launch.join_launcher import JoinLauncher, secret_of
from pathways.runtime.hosts.launch.launcher import Launcher, SpareWorkers
from pathways.runtime.hosts.launch.launcher_records import Children, Join, LauncherRecord, Ray, Slurm, Ssh
from pathways.runtime.hosts.launch.options import HostOptions
from pathways.runtime.hosts.launch.ray_launcher import RayLauncher
from pathways.runtime.hosts.launch.settings import Island, Settings, islands_of
from pathways.runtime.hosts.launch.slurm import islands_on, nodes_of, own_address


def settings_of(
    launcher: LauncherRecord | Children | None = None,
    *,
    hosts: int | None = None,
    devices_per_host: int | None = None,
    islands: object = None,
    platform: str | None = None,
    options: HostOptions | None = None,
) -> Settings:
    """Returns the settings for keywords of `pathways.connect`; see there.

    Raises:
      TypeError: `islands` has an element that is not an island.
      ValueError: a setting is not valid, or cannot be combined with another.
    """
    launcher = launcher or Children()
    name, count = type(launcher).__name__, 1 if devices_per_host is None else devices_per_host
    if hosts is not None and islands is not None:
        raise ValueError("connect: hosts= and islands= both say which hosts; expected one of them")
    if devices_per_host is not None and islands is not None:
        raise ValueError(
            "connect: devices_per_host= is for hosts=; with islands= each has its own, as in "
            f"pathways.Island(hosts=2, devices_per_host={devices_per_host})"
        )
    if hosts is not None and isinstance(launcher, Slurm):
        raise ValueError(
            "connect: the hosts of Slurm are the nodes of the allocation; pass islands=, or nothing"
        )
    if hosts is not None and isinstance(launcher, Ssh):
        raise ValueError("connect: the hosts of Ssh are machines with names, as in pathways.Ssh(['a', 'b'])")
    if islands is not None and isinstance(launcher, Ssh) and launcher.machines is not None:
        raise ValueError("connect: Ssh(machines) and islands= both name machines; expected one of them")
    requested: tuple[Island, ...]
    if isinstance(launcher, Slurm):
        nodes = nodes_of(os.environ)
        requested = islands_on(nodes, islands, count)
        launcher = Ssh(
            start=launcher.start,
            python=launcher.python,
            bind=own_address(os.environ, len(nodes)) if launcher.bind is None else launcher.bind,
            advertise=launcher.advertise,
            ports=launcher.ports,
        )
    elif isinstance(launcher, Ssh) and launcher.machines is not None:
        requested = tuple(Island([machine], count) for machine in launcher.machines)
    elif hosts is None and islands is None:
        raise ValueError(
            f"connect: {name} needs islands=[pathways.Island(...), ...]"
            + ("" if isinstance(launcher, Ssh) else ", or hosts=")
        )
    else:
        requested = islands_of(islands, hosts, count)
    return Settings(requested, options or HostOptions(), launcher, platform or "cpu")


def launcher_of(settings: Settings, spares: SpareWorkers) -> Launcher:
    """Returns the launcher of workers.

    Args:
      spares: the spare workers; only children of this process can be spares.

    Raises:
      HostError: the launcher cannot be created, for instance because a port is taken.
      OSError: the secret file cannot be read.
      ValueError: other users may read the secret file, or it is too short.
    """
    match settings.launcher:
        case Ssh() as ssh:
            return Spawner(ssh.command, spares)
        case Ray() as ray:
            return RayLauncher(ray, settings.hosts, settings.cores)
        case Join() as join:
            assert join.ports is not None
            ports = join.ports[:1] * 2
            return JoinLauncher("Join", join, ports, secret_of(join.secret_file), settings.hosts)
    return Spawner(None, spares)


def start_description(settings: Settings) -> str:
    """Returns a line on a start of workers, as in `starting 3 hosts with Ray`."""
    match settings.launcher:
        case Ray():
            return f"starting {settings.hosts} hosts with Ray"
        case Join() as join:
            return f"waiting for {settings.hosts} hosts to join at {join.join_address}"
    return f"starting {settings.hosts} hosts"

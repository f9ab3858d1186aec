"""Which devices programs run on: those of this process, or those of workers on hosts."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Sequence
from typing import Unpack

from pathways.runtime.hosts.controller.controller import Controller
from pathways.runtime.hosts.controller.starting import Starter
from pathways.runtime.hosts.launch.children import Spawner
from pathways.runtime.hosts.launch.commands import DEFAULT_START, StartCommand
from pathways.runtime.hosts.launch.joining import JoinLauncher, secret_of
from pathways.runtime.hosts.launch.launching import Launcher
from pathways.runtime.hosts.launch.options import FormerKeywords, HostOptions, with_former
from pathways.runtime.hosts.launch.ray_launcher import RayLauncher
from pathways.runtime.hosts.launch.settings import Island, Settings, islands_of
from pathways.runtime.hosts.launch.slurm import SLURM_START, islands_on, nodes_of, own_address
from pathways.runtime.local import devices, recording, stalls
from pathways.runtime.resources.cluster import Cluster
from pathways.runtime.xla.tracebacks import boundary

_lock = threading.RLock()
_controller: Controller | None = None


@boundary
def connect(
    launcher: str | None = None,
    /,
    *,
    hosts: int | Sequence[str] | None = None,
    devices_per_host: int = 1,
    islands: int | Sequence[Island] | None = None,
    address: str | None = None,
    bind: str | None = None,
    start: str | None = None,
    python: str | None = None,
    secret_file: str | None = None,
    cpu_devices: int | None = None,
    platform: str | None = None,
    device_memory: int | None = None,
    options: HostOptions | None = None,
    **former: Unpack[FormerKeywords],
) -> Cluster:
    """Chooses the devices that programs use, and returns them.

    Asking for those that are in use already changes nothing.

    Args:
      launcher: `"ray"` lets Ray start the workers of `islands`, on the machines of its cluster; it needs the
        extra `pathways-mlir[ray]`. `"slurm"` has `srun` start one on each node of the allocation that this
        process runs in, each an island, or those of `islands`. `"join"` waits
        for as many `pw-worker --join` as there are hosts, at the first of `ports`. By default this process
        starts them on its own machine.
      hosts: start this number of worker processes on this machine, each with its own JAX, and use their
        devices: each is an island. They end with this process, or when it connects to other devices, or
        at `disconnect`. Or names of machines, as in `["a", "b"]`, on each of which `start` starts one; they
        have to reach `bind`.
      devices_per_host: the number of CPU devices of each worker.
      islands: a list of `Island`s: start the workers of each. A number: divide the devices of this process
        into so many equal consecutive islands, one by default.
      address: of the Ray cluster to join, as in `10.0.0.5:6379`; `auto` for the one of this machine. By
        default Ray starts one of its own here, which ends with this process.
      bind: the IPv4 address on which this process listens for workers, which connect over TCP and listen at
        the address from which they reach it. By default a socket in a folder that only this user may enter;
        with Ray 127.0.0.1, with Slurm that of this node.
      start: the command that starts a worker on a machine with a name, `"ssh {host} {command}"` by default.
        It is split as by a shell, but no shell sees it: `{host}` is replaced by the name, and the word
        `{command}` by the words that run a worker. It has the environment of this process; what the worker
        has to know, with the secret of the cluster, goes to its standard input; when it ends, so has the
        worker.
      python: the Python of workers on machines with names; by default the path of that of this process.
      secret_file: with `"join"` a file with random bytes that only this user may read; those who join need a
        copy.
      cpu_devices: use this number of CPU devices of this process. JAX makes as many when it has not started
        yet.
      platform: the JAX platform; by default that of `jax.devices()`, or cpu when `cpu_devices` is given or on
        hosts. A host of another platform has all devices of it that its JAX finds.
      device_memory: bytes of memory that programs may use on each device, such as `16 * 2**30`. A program
        that takes more is refused when it is compiled. By default what JAX says (`bytes_limit` of
        `jax.Device.memory_stats()`); for CPU devices that is nothing, and nothing is refused.
      options: how workers are watched and where they listen, see `HostOptions`; its `stall_report` is for the
        devices of this process, too.
      former: fields of `options`, which may still be given as keywords; that is deprecated.

    Raises:
      ValueError: a number below one, islands that would not be equal, or settings of this process together
        with hosts.
      RuntimeError: fewer CPU devices than asked for, and JAX has already started; or slices are bound to
        devices of the present cluster.
      ResourceError: JAX has no devices of the platform here, or of the one that JAX_PLATFORMS names.
      HostError: a worker does not start.
    """
    with _lock:
        options = with_former(options, former)
        if launcher not in (None, "ray", "slurm", "join"):
            raise ValueError(f"connect({launcher!r}): expected 'ray', 'slurm', 'join', or nothing")
        if launcher == "slurm":
            if hosts is not None:
                raise ValueError(
                    "connect('slurm'): hosts are the nodes of the allocation; say islands=, or nothing"
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
        if launcher != "ray" and address is not None:
            raise ValueError("connect: address= is that of a Ray cluster: say connect('ray', address=...)")
        if launcher is None and hosts is None and (islands is None or isinstance(islands, int)):
            found = devices.connect(
                cpu_devices=cpu_devices, islands=islands, platform=platform, device_memory=device_memory
            )
            _close()
            stalls.watch.set(options.stall_report)
            return found
        if any(setting is not None for setting in (cpu_devices, device_memory)) or (
            hosts is not None and islands is not None
        ):
            raise ValueError(
                "connect: cpu_devices, device_memory and islands=2 are for the devices of this "
                "process; with hosts= say devices_per_host=, or islands=[pathways.Island(...)] alone"
            )
        asked = islands_of(islands, hosts, devices_per_host)
        bind = bind or ("127.0.0.1" if launcher == "ray" else None)
        named = any(machine is not None for island in asked for machine in island.machines)
        command = None
        if named or start is not None or python is not None:
            command = StartCommand(DEFAULT_START if start is None else start, python)
        return _connect_hosts(
            Settings(asked, options, bind, command, platform or "cpu", launcher, address, secret_file)
        )


@boundary
def disconnect() -> None:
    """Ends the workers, and gives the devices of all slices back.

    The next program uses the devices of this process, unless `connect` is called before. Arrays on hosts are
    gone, and so are programs that were compiled for them; those of this process stay as they are.
    """
    with _lock:
        _close()
        devices.session.disconnect()


def controller() -> Controller | None:
    """The controller of the workers that programs run on; None when they run in this process."""
    return _controller


def _launcher(settings: Settings) -> Launcher:
    if settings.launcher is None:
        return Spawner(settings.start)
    assert settings.bind is not None
    if settings.secret_file is not None:
        return JoinLauncher(settings.endpoints, secret_of(settings.secret_file), settings.hosts)
    return RayLauncher(settings.address, settings.bind, settings.cores)


def _connect_hosts(settings: Settings) -> Cluster:
    global _controller
    if _controller is not None and _controller.is_usable() and _controller.settings == settings:
        return _controller.cluster
    if bound := devices.session.bound_slices():
        raise RuntimeError(
            f"connect: slices {', '.join(bound)} are bound to devices; release them with "
            "pathways.release(slice), or connect first"
        )
    _close()
    launcher = _launcher(settings)
    match launcher:
        case RayLauncher():
            doing = f"starting {settings.hosts} hosts with Ray"
        case JoinLauncher():
            doing = f"waiting for {settings.hosts} hosts to join at {launcher.address}"
        case _:
            doing = f"starting {settings.hosts} hosts"
    print(f"pathways: {doing} ...", file=sys.stderr, flush=True)
    try:
        secret = launcher.secret if isinstance(launcher, JoinLauncher) else None
        started = Controller(Starter(settings, launcher, secret), settings)
    except BaseException:
        launcher.close()
        raise
    try:
        recording.register(started.traces)
        cluster = devices.session.connect(lambda: started.cluster)
    except BaseException:
        started.close()
        raise
    _controller = started
    # Last in, first out: before whatever was imported to start them leaves.
    atexit.unregister(_close)
    atexit.register(_close)
    return cluster


def _close() -> None:
    global _controller
    if _controller is not None:
        _controller.close()
        _controller = None


def _leave() -> None:
    if _controller is not None:
        _controller.leave()


# The workers of a process are not those of its children, which end at any time.
os.register_at_fork(after_in_child=_leave)

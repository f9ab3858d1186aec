"""Choice of the devices that programs run on: those of this process, or those of workers on hosts."""

from __future__ import annotations

import atexit
import inspect
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Never

from pathways.runtime.clusters.starter_choice import starter_of
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.client.local_session import LocalSession
from pathways.runtime.hosts.cluster.worker_cluster import WorkerCluster
from pathways.runtime.hosts.launch.launcher_choice import settings_of, start_description
from pathways.runtime.hosts.launch.options import HostOptions, keyword_error
from pathways.runtime.hosts.launch.settings import Island, Settings
from pathways.runtime.local import devices, stalls
from pathways.runtime.resources.cluster import Cluster
from pathways.runtime.resources.process_cluster import bound_elsewhere
from pathways.runtime.service.client import attaching
from pathways.runtime.service.client.attaching import Attachment, attachment_of
from pathways.runtime.service.client.island_mover import move_when_drained
from pathways.runtime.service.client.remote_session import RemoteSession
from pathways.runtime.traces.file_trace import start_from_environment
from pathways.runtime.traces.host_traces import trace_hosts
from pathways.runtime.xla.host_errors import raise_as_errors_of_jax
from pathways.runtime.xla.tracebacks import boundary

_lock = threading.RLock()
_controller: HostSession | None = None
_requested: Settings | Attachment | None = None
"""Settings of `_controller`."""

before_end: list[Callable[[], None]] = []
"""Functions that wait for pending work on workers, called before the workers exit."""


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
    attach: str | None = None,
    client: str | None = None,
    token: str | os.PathLike[str] | None = None,
    **unknown: Never,
) -> Cluster:
    """Chooses the devices that programs use, and returns them.

    Requesting the devices that are in use already changes nothing.

    Args:
      launcher: `"ray"` lets Ray start the workers of `islands`, on the machines of its cluster; it needs the
        extra `pathways-mlir[ray]`. `"slurm"` starts with `srun` one on each node of the allocation that this
        process runs in, each an island, or those of `islands`. `"join"` waits for as many
        `pw-worker --join` as there are hosts, at the first of `ports`. By default this process starts them on
        its own machine.
      hosts: the number of worker processes to start on this machine, each with its own JAX, and each an
        island. They exit with this process, or when it connects to other devices, or at `disconnect`. Or the
        names of machines, as in `["a", "b"]`: `start` starts a worker on each; they have to reach `bind`.
      devices_per_host: the number of CPU devices of each worker.
      islands: a list of `Island`s whose workers to start; or the number of equal consecutive islands into
        which to divide the devices of this process, one by default.
      address: the address of the Ray cluster to join, as in `10.0.0.5:6379`; `auto` for the one of this
        machine. By default Ray starts one of its own here, which ends with this process.
      bind: the IPv4 address on which this process listens for workers, which connect over TCP and listen at
        the address from which they reach it. By default a socket in a folder that only this user may enter;
        with Ray 127.0.0.1, with Slurm that of this node.
      start: the command that starts a worker on a named machine, `"ssh {host} {command}"` by default. It is
        split as by a shell, but run without one: `{host}` is replaced by the name, and the word `{command}`
        by the words that run a worker. It has the environment of this process. Its standard input receives
        the configuration of the worker, with the secret of the cluster. It must not exit before the worker.
      python: the Python of workers on named machines; by default the path of that of this process.
      secret_file: with `"join"` a file with random bytes that only this user may read; joining machines need
        a copy.
      cpu_devices: the number of CPU devices of this process to use. JAX creates as many if it has not started
        yet.
      platform: the JAX platform; by default that of `jax.devices()`, or cpu when `cpu_devices` is given or on
        hosts. A host of another platform has all devices of it that its JAX finds.
      device_memory: the bytes of memory that programs may use on each device, such as `16 * 2**30`. A program
        that needs more is rejected when it is compiled. By default the limit that JAX reports (`bytes_limit`
        of `jax.Device.memory_stats()`); it reports none for CPU devices, which together have the memory of
        their machine, or the limit of its cgroup.
      options: the timeouts and ports of workers, see `HostOptions`; its `stall_report` is for the devices of
        this process, too.
      attach: the service to attach to as a client, which shares its islands with other clients and was
        started with `pw-cluster up`: the name of its cluster, as in `"lab"`, or its address, as in
        `"10.0.0.5:7070"`.
      client: the name of this process at the service; by default that of the token of a client, or the name
        of the user and the process id. A name belongs to one client at a time; its share may be set in the
        file of the cluster.
      token: the path of a copy of the token of the cluster, by default that in its folder on this machine; or
        of the token of a client (`pw-cluster token`).
      unknown: any other keyword, which is an error.

    Raises:
      TypeError: there is no such keyword, or `options` has another type.
      ValueError: a number below one, islands that would not be equal, or settings of this process together
        with hosts.
      RuntimeError: there are fewer CPU devices than requested, and JAX has already started; or slices are
        bound to devices of the present cluster.
      ResourceError: JAX has no devices of the platform here, or of the one that JAX_PLATFORMS names.
      HostError: a worker does not start.
    """
    for name in unknown:
        raise keyword_error(name, unknown[name], inspect.signature(connect).parameters)
    if not isinstance(options, HostOptions | None):
        raise TypeError(f"options={options!r}: expected pathways.HostOptions(...)")
    with _lock:
        if attach is not None:
            # The file of the cluster has all other settings.
            of_workers = (launcher, hosts, islands, address, bind, start, python, secret_file)
            of_devices = (cpu_devices, platform, device_memory, options)
            if any(each is not None for each in (*of_workers, *of_devices)) or devices_per_host != 1:
                raise ValueError("connect: with attach= only client= and token= can be given")
            return _connect(attachment_of(attach, client, token))
        if client is not None or token is not None:
            raise ValueError("connect: client= and token= need attach=")
        options = options or HostOptions()
        is_local = launcher is None and hosts is None and address is None
        if is_local and (islands is None or isinstance(islands, int)):
            found = devices.connect(
                cpu_devices=cpu_devices, islands=islands, platform=platform, device_memory=device_memory
            )
            _close()
            stalls.monitor.configure(options.stall_report)
            return found
        if any(setting is not None for setting in (cpu_devices, device_memory)) or (
            hosts is not None and islands is not None
        ):
            raise ValueError(
                "connect: cpu_devices, device_memory and islands=2 are for the devices of this "
                "process; with hosts= give devices_per_host=, or islands=[pathways.Island(...)] alone"
            )
        return _connect(
            settings_of(
                launcher,
                hosts=hosts,
                devices_per_host=devices_per_host,
                islands=islands,
                address=address,
                bind=bind,
                start=start,
                python=python,
                secret_file=secret_file,
                platform=platform,
                options=options,
            )
        )


@boundary
def disconnect() -> None:
    """Terminates the workers, and releases the devices of all slices.

    The next program uses the devices of this process, unless `connect` is called before. Arrays on hosts and
    programs compiled for hosts are lost; those of this process stay as they are. A checkpoint that is being
    written is completed first.
    """
    with _lock:
        _close()
        devices.process_cluster.disconnect()


def controller() -> HostSession | None:
    """Returns the session with the workers that programs run on; None if they run in this process."""
    return _controller


def _connect(requested: Settings | Attachment) -> Cluster:
    global _controller, _requested
    if _controller is not None and _controller.is_usable() and _requested == requested:
        return _controller.cluster
    if bound := devices.process_cluster.bound_slices():
        raise RuntimeError(bound_elsewhere(bound))
    _close()
    raise_as_errors_of_jax()
    if isinstance(requested, Settings):
        started = start_session(requested)
    else:
        started = with_extensions(attaching.attach(requested))
    try:
        cluster = devices.process_cluster.connect(lambda: started.cluster, started.bind)
    except BaseException:
        started.close()
        raise
    _controller, _requested = started, requested
    # Registered last, since exit handlers run in reverse order: before those of modules that were imported to
    # start the workers.
    atexit.unregister(_close)
    atexit.register(_close)
    return cluster


def with_extensions[S: HostSession](session: S) -> S:
    """Returns a session after it got the extensions that programs of this process use."""
    start_from_environment()
    trace_hosts(session)
    if isinstance(session, RemoteSession):
        move_when_drained(session)
    return session


def start_session(settings: Settings) -> HostSession:
    """Starts the workers that settings describe, and returns a session with them.

    Raises:
      HostError: a worker does not start.
    """
    starter = starter_of(settings)
    print(f"pathways: {start_description(settings)} ...", file=sys.stderr, flush=True)
    try:
        return with_extensions(LocalSession(WorkerCluster(starter, settings)))
    except BaseException:
        starter.close()
        raise


def _close() -> None:
    global _controller
    if _controller is not None:
        for wait in before_end:
            wait()
        _controller.close()
        _controller = None


def _leave() -> None:
    if _controller is not None:
        _controller.leave()


# A child process must not close its parent's workers when it exits.
os.register_at_fork(after_in_child=_leave)

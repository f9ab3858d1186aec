"""Choice of the devices that programs run on: devices of this process, or of workers on hosts."""

from __future__ import annotations

import atexit
import inspect
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Never

from pathways.runtime.clusters.connect_keywords import keyword_error, kind_of
from pathways.runtime.clusters.starter_choice import starter_of
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.client.local_session import LocalSession
from pathways.runtime.hosts.cluster.worker_cluster import WorkerCluster
from pathways.runtime.hosts.launch.launcher_choice import settings_of, start_description
from pathways.runtime.hosts.launch.launcher_records import LauncherRecord
from pathways.runtime.hosts.launch.options import HostOptions
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
    where: str | LauncherRecord | None = None,
    /,
    *,
    hosts: int | None = None,
    devices_per_host: int | None = None,
    islands: int | Sequence[Island] | None = None,
    cpu_devices: int | None = None,
    platform: str | None = None,
    device_memory: int | None = None,
    options: HostOptions | None = None,
    client: str | None = None,
    token: str | os.PathLike[str] | None = None,
    **unknown: Never,
) -> Cluster:
    """Chooses the devices that programs use, and returns them.

        pw.connect(cpu_devices=8)                             devices of this process
        pw.connect(hosts=4)                                   workers on this machine
        pw.connect(pw.Ssh(["a", "b"], bind="10.0.0.5"))       workers on others: also Slurm, Ray, Join
        pw.connect("lab")                                     a service that others share
        pw.connect("10.0.0.5:7070", token="ann.token")        a service elsewhere

    Each takes other keywords:

    | devices | keywords |
    |---|---|
    | of this process | `cpu_devices`, `islands` as a number, `platform`, `device_memory`, `options` |
    | of workers | `hosts` and `devices_per_host`, or `islands` as a list; `platform`, `options` |
    | of a service | `client`, `token` |

    Requesting the devices that are in use already changes nothing.

    Args:
      where: the launcher that starts workers: `Ssh`, `Slurm`, `Ray` or `Join`; see there for what each takes.
        Or the service to attach to as a client, which shares its islands with other clients and was started
        with `pw-cluster up`: the name of its cluster, or its address. By default this process starts workers
        on its own machine, or uses its own devices.
      hosts: the number of workers to start, each with its own JAX, and each an island. They exit with this
        process, or when it connects to other devices, or at `disconnect`.
      devices_per_host: the number of CPU devices of each worker, 1 by default.
      islands: a list of `Island`s whose workers to start; or the number of equal consecutive islands into
        which to divide the devices of this process, one by default.
      cpu_devices: the number of CPU devices of this process to use. JAX creates as many if it has not started
        yet.
      platform: the JAX platform; by default as `jax.devices()` has it, or cpu when `cpu_devices` is given or
        on hosts. A host of another platform has all devices of it that its JAX finds.
      device_memory: the bytes of memory that programs may use on each device, such as `16 * 2**30`. A program
        that needs more is rejected when it is compiled. By default the limit that JAX reports (`bytes_limit`
        of `jax.Device.memory_stats()`); it reports none for CPU devices, which together have the memory of
        their machine, or the limit of its cgroup.
      options: the timeouts of workers, see `HostOptions`; its `stall_report` is for the devices of this
        process, too.
      client: the name of this process at the service; by default the name in the token of a client, or the
        name of the user and the process id. A name belongs to one client at a time; its share may be set in
        the file of the cluster.
      token: the path of a copy of the cluster's token, by default of the one in its folder on this machine;
        or of a client's token (`pw-cluster token`).
      unknown: any other keyword, which is an error.

    Raises:
      TypeError: `connect` lacks the keyword, or an argument has another type.
      ValueError: a number below one, islands that would not be equal, or keywords that do not go together.
      RuntimeError: there are fewer CPU devices than requested, and JAX has already started; or slices are
        bound to devices of the present cluster.
      ResourceError: JAX has no devices of the platform here, or of the one that JAX_PLATFORMS names.
      HostError: a worker does not start, or the service does not admit this process.
    """
    for name in unknown:
        raise keyword_error(name, unknown[name], inspect.signature(connect).parameters)
    if not isinstance(options, HostOptions | None):
        raise TypeError(f"options={options!r}: expected pathways.HostOptions(...)")
    keywords = {
        "hosts": hosts,
        "devices_per_host": devices_per_host,
        "islands": islands,
        "cpu_devices": cpu_devices,
        "platform": platform,
        "device_memory": device_memory,
        "options": options,
        "client": client,
        "token": token,
    }
    kind = kind_of(where, keywords)
    with _lock:
        if isinstance(where, str):
            return _connect(attachment_of(where, client, token))
        if kind == "workers":
            return _connect(
                settings_of(
                    where,
                    hosts=hosts,
                    devices_per_host=devices_per_host,
                    islands=islands,
                    platform=platform,
                    options=options,
                )
            )
        assert not isinstance(islands, Sequence)
        cluster = devices.connect(
            cpu_devices=cpu_devices, islands=islands, platform=platform, device_memory=device_memory
        )
        _close()
        stalls.monitor.configure((options or HostOptions()).stall_report)
        return cluster


@boundary
def disconnect() -> None:
    """Terminates the workers, and releases the devices of all slices.

    The next program uses the devices of this process, unless `connect` is called before. Arrays on hosts and
    programs compiled for hosts are lost; arrays and programs of this process are not affected. A checkpoint
    that is being written is completed first.
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
    # Registered last, since exit handlers run in reverse order: it runs before the handlers of modules that
    # were imported to start the workers.
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

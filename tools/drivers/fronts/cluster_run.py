"""Front of `pw-cluster run`: a client of a service, and the server of an unmodified JAX program."""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
from collections.abc import Mapping, Sequence

import jax

from pathways.dialect.errors import PathwaysError
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.proxy.hosted.hosts_backend import HostsBackend
from pathways.runtime.proxy.serving.server import serve
from pathways.runtime.resources.virtual import VirtualDeviceSet, VirtualSlice
from pathways.runtime.service.client.attaching import attach, attachment_of, origin_of
from pathways.runtime.service.client.remote_session import RemoteSession
from pathways.runtime.traces.host_traces import trace_hosts
from pathways.runtime.traces.recorder import Recorder
from pathways.tools.common.errors import UserError
from pathways.tools.drivers.fronts.proxy import run_client


def run(options: argparse.Namespace, program: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a program on the devices of a cluster, and returns its exit code.

    Args:
      environment: the environment of the program, without variables of this process.
    """
    logging.basicConfig(format="pw-cluster: %(message)s", level=logging.WARNING)
    # The front has no devices of its own; the CPU is for defaults of compiler options.
    jax.config.update("jax_platforms", "cpu")
    try:
        session = attach(attachment_of(options.target, options.client, options.token))
    except (PathwaysError, ValueError, OSError) as error:
        raise UserError(str(error)) from None
    trace_hosts(session)
    try:
        islands = _numbers(session, options.islands)
        bound = _bind(session, islands)
        backend = HostsBackend(session, islands)
    except BaseException:
        session.close()
        raise
    assert bound
    with serve(backend=backend, files=options.files, make_recorder=Recorder) as server:
        return run_client(
            server,
            program,
            environment,
            with_cpu=options.with_cpu,
            on_start=functools.partial(_send_process, session),
        )


def _send_process(session: RemoteSession, process: int) -> None:
    """Notifies the service of the process of the program, which users know, not this one."""
    # The program reports the loss of the service, where it needs it.
    with contextlib.suppress(HostError):
        session.send_origin(origin_of(process))


def _bind(session: RemoteSession, islands: Sequence[int]) -> list[VirtualSlice]:
    """Returns a slice of all devices of each island, bound for as long as it is referred to.

    Programs of other clients get devices of other islands first.
    """
    devices, cluster = VirtualDeviceSet(), session.cluster
    slices = [
        devices.add_slice(len(island.devices), "device", island=island.name, overlap=True)
        for island in (cluster.islands[number] for number in islands)
    ]
    session.bind(cluster).bind(slices, "of pw-cluster run")
    return slices


def _numbers(session: RemoteSession, names: Sequence[str] | None) -> list[int]:
    """Returns the numbers of islands by their names; by default of all islands that are not drained."""
    # After a reply, the losses are known that the service reported before it.
    session.status()
    islands = session.current_cluster().islands
    existing = [island.name for island in islands]
    present = [number for number, island in enumerate(islands) if island.state != "drained"]
    if names is None:
        if not present:
            raise UserError(
                f"all islands are drained: {', '.join(existing)}; pw-cluster undrain has one return"
            )
        return present
    for name in names:
        if name not in existing or names.count(name) > 1:
            problem = "is listed twice" if name in existing else "does not exist"
            raise UserError(f"--islands: {name} {problem}; the islands are {', '.join(existing)}")
        if existing.index(name) not in present:
            raise UserError(f"--islands: {name} is drained; pw-cluster undrain has it return")
    return [existing.index(name) for name in names]

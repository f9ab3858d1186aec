"""Front of `pw-cluster run`: a client of a service, and the server of an unmodified JAX program."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence

import jax

from pathways.dialect.errors import PathwaysError
from pathways.runtime.proxy.hosted.hosts_backend import HostsBackend
from pathways.runtime.proxy.serving.server import serve
from pathways.runtime.service.client.attaching import attach, attachment_of
from pathways.runtime.service.client.remote_session import RemoteSession
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
    try:
        backend = HostsBackend(session, _numbers(session, options.islands))
    except BaseException:
        session.close()
        raise
    with serve(backend=backend, files=options.files) as server:
        return run_client(server, program, environment, with_cpu=options.with_cpu)


def _numbers(session: RemoteSession, names: Sequence[str] | None) -> list[int] | None:
    """Returns the numbers of islands by their names."""
    if names is None:
        return None
    known = [island.name for island in session.cluster.islands]
    for name in names:
        if name not in known or names.count(name) > 1:
            what = "is listed twice" if name in known else "does not exist"
            raise UserError(f"--islands: {name} {what}; the islands are {', '.join(known)}")
    return [known.index(name) for name in names]

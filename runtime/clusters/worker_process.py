"""Worker process: connects to the controller, joins its island, and starts the worker and its extensions."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import sys
import time
from typing import Any

from pathways.runtime.resources.process_limits import exit_with_parent

if __name__ == "__main__":
    # The imports below start threads, which inherit the mask: `SigtermHandler` alone must get the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    # Before the imports, which take seconds. The end of standard input would not do instead: processes forked
    # from the parent may keep it open.
    if len(sys.argv) > 1:
        exit_with_parent(int(sys.argv[1]))

import jax

from pathways.runtime.control.gang import START_SECONDS
from pathways.runtime.hosts.launch.cores import pin
from pathways.runtime.hosts.launch.ready import FOLDER, ReadyFile
from pathways.runtime.hosts.launch.sockets import connect_to, own_address, server_socket
from pathways.runtime.hosts.protocol import messages as m
from pathways.runtime.hosts.protocol.acceptor import open_connection
from pathways.runtime.hosts.protocol.frames import decode_for_worker
from pathways.runtime.hosts.protocol.join_messages import WorkerConfig
from pathways.runtime.hosts.protocol.wire import Connection
from pathways.runtime.hosts.worker.probes import Probes
from pathways.runtime.hosts.worker.sigterm import SigtermHandler
from pathways.runtime.hosts.worker.worker import Worker, WorkerExtension, exit_now, refuse
from pathways.runtime.hosts.worker.worker_target import Peers
from pathways.runtime.local.devices import discover
from pathways.runtime.proxy.worker.extension import serve_proxy
from pathways.runtime.resilience.snapshots.worker_snapshots import serve_snapshots
from pathways.runtime.resources.cluster import Cluster
from pathways.runtime.resources.manager import ResourceError
from pathways.runtime.resources.ports import claimed_port, is_shared
from pathways.runtime.resources.threads import start_thread
from pathways.runtime.traces.worker_recording import record_steps
from pathways.runtime.xla import distributed

EXTENSIONS: tuple[WorkerExtension, ...] = (record_steps, serve_snapshots, serve_proxy)
"""Extensions of workers, beside steps, calls and arrays."""

_chance = random.SystemRandom()
"""Source of jitter apart from `random`, whose state belongs to the user and is shared by forked processes."""

_AGAIN_SECONDS = 0.5
"""Maximum delay before a worker that was refused connects again, in seconds."""


def main() -> int:
    """Runs a worker, which reads its configuration as a line of JSON from standard input.

    A worker on the machine of its parent gets the process id of the parent as an argument. A spare worker
    gets the configuration when it is used.
    """
    # Ctrl-C is for the controller; the worker exits with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("ready", flush=True)
    if not (line := sys.stdin.readline()):
        return 0
    # The parent does not read any more; functions of users must not block when they print.
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)
    config = WorkerConfig.from_json(line)
    start_thread(_exit_with_input, "standard input")
    jax.config.update("jax_platforms", config.platform)
    secret = bytes.fromhex(config.secret)
    sigterm = SigtermHandler(config.grace, exit_now)

    try:
        if config.cores is not None:
            pin(config.first_core, config.cores)
        connected = {channel: _connect(config, secret, channel) for channel in m.CHANNELS}
        connections = {channel: connection for channel, (connection, _) in connected.items()}
        # Other workers use the network through which this one reaches the controller.
        address = connected["watch"][1]
        cluster = _devices(config, address, connections["watch"])
        peers = Peers(jax.devices()[0].client, address, config.ports)
        server = server_socket(address, config.ports)
        mark = ReadyFile(os.environ.get(FOLDER), config.host)
    except (OSError, m.MessageError, ResourceError) as error:
        print(f"pathways worker: {error}", file=sys.stderr)
        return 1
    probes = Probes(
        server,
        secret,
        config.host,
        config.epoch,
        lambda *lost: worker.report_lost_peer(*lost),
        lambda *returned: worker.report_found_peer(*returned),
        config.heartbeat,
    )
    local = tuple(device for device in cluster.devices if device.host.index == jax.process_index())
    worker = Worker(config, connections, peers, cluster.devices, probes, EXTENSIONS)
    connections["watch"].send(
        m.Ready(
            cluster.platform,
            tuple(device.id for device in local),
            tuple(device.memory for device in local),
            peers.address,
            probes.address,
            socket.gethostname(),
        )
    )

    def leave() -> None:
        mark.remove()
        worker.report_leaving()

    sigterm.notify = leave
    worker.serve()
    return 0


def _exit_with_input() -> None:
    """Exits when standard input closes: the process that started this one has exited, or wants it to exit.

    The connections to the controller do not show that while the network is cut.
    """
    # Not through `sys.stdin`, whose lock the exit of the interpreter needs.
    while os.read(0, 1024):
        pass
    exit_now()


def _connect(config: WorkerConfig, secret: bytes, channel: str) -> tuple[Connection[Any], str]:
    """Connects to the controller; returns the connection and the address of this machine on it.

    Raises:
      OSError: nothing listens there, or it is not reached within the time for the start.
      MessageError: the handshake failed, because the other side does not know the secret.
    """
    purpose = m.Purpose(channel, "worker", config.host, config.epoch, "controller")
    deadline = time.monotonic() + START_SECONDS
    has_warned = False
    while True:
        try:
            sock = connect_to(config.controller, config.heartbeat)
            address = own_address(sock)
            return open_connection(sock, secret, purpose, decode_for_worker), address
        except (ConnectionRefusedError, FileNotFoundError):
            raise
        except OSError as error:
            # The network is cut, or the controller has too many pending connections.
            if time.monotonic() > deadline:
                raise
            if not has_warned:
                has_warned, controller = True, config.controller
                print(
                    f"pathways worker: cannot reach the controller at {controller}; retrying: {error}",
                    file=sys.stderr,
                )
            time.sleep(_AGAIN_SECONDS * _chance.random())


def _devices(config: WorkerConfig, address: str, watch: Connection[Any]) -> Cluster:
    """Joins the other hosts of the island; returns the devices of all of them."""
    if config.size == 1:
        is_cpu = config.platform == "cpu"
        return discover(config.cpu_devices if is_cpu else None, platform=config.platform)
    with contextlib.ExitStack() as stack:
        port = None
        if config.rank == 0:
            # Keeps other processes of this package off the port until JAX listens there.
            port = stack.enter_context(claimed_port(address, config.ports))
            watch.send(m.Coordinator(f"{address}:{port}"))
        join = watch.receive()
        if not isinstance(join, m.JoinCoordinator):
            refuse(join)
        distributed.join(
            join.address,
            address,
            rank=config.rank,
            size=config.size,
            cpu_devices=config.cpu_devices,
            start_seconds=round(START_SECONDS),
        )
        if port is not None and is_shared(address, port):
            raise OSError(f"another process listens on {address}:{port} too, where hosts of the island meet")
    return discover()


if __name__ == "__main__":
    sys.exit(main())

"""Starts workers as children of the controller, and lets nobody else in."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from pathways.runtime.hosts.controller import Controller
from pathways.runtime.hosts.host import HostError, HostProcess, ending
from pathways.runtime.hosts.messages import CHANNELS, Hello, MessageError, versions
from pathways.runtime.hosts.settings import Settings
from pathways.runtime.hosts.wire import Connection, ConnectionEnded, greet_worker

log = logging.getLogger("pathways")

_Greeted = tuple[Connection[Any], Hello]
_MOST_STRANGERS = 64
"""Connections that may be greeted at the same time."""

_START_SECONDS = 120.0
"""How long workers may take to start."""


def start(settings: Settings) -> Controller:
    """Starts workers as children of this process, each with its own JAX.

    Args:
      settings: how many, and what of each.

    Raises:
      HostError: one of them does not start; says which and why.
    """
    secret = secrets.token_bytes(32)
    processes: list[subprocess.Popen[bytes]] = []
    with _server() as server:
        try:
            for _ in range(settings.hosts):
                processes.append(_spawn(server.getsockname(), secret, settings.devices_per_host))
            hosts = _greet_all(server, secret, processes)
        except BaseException:
            for process in processes:
                process.kill()
                process.wait()
            raise
        finally:
            # Closing it does not wake who accepts.
            server.shutdown(socket.SHUT_RDWR)
    return Controller(hosts, settings)


@contextlib.contextmanager
def _server() -> Iterator[socket.socket]:
    """A socket in a folder that nobody else may enter: faster than a port, and less open."""
    # Paths of sockets are short, and the folder that the user chose for temporary files may be deep.
    with (
        tempfile.TemporaryDirectory(prefix="pathways-", dir="/tmp") as folder,
        socket.socket(socket.AF_UNIX) as server,
    ):
        server.bind(f"{folder}/controller")
        server.listen(_MOST_STRANGERS)
        yield server


def _spawn(address: str, secret: bytes, devices: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    # The controller writes what its workers record.
    environment.pop("PW_TRACE", None)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "pathways.runtime.hosts.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=environment,
    )
    config = {"address": address, "secret": secret.hex(), "cpu_devices": devices}
    assert process.stdin is not None
    # Not on the command line, which everyone may read.
    process.stdin.write(json.dumps(config).encode() + b"\n")
    process.stdin.flush()
    return process


def _greet_all(
    server: socket.socket, secret: bytes, processes: Sequence[subprocess.Popen[bytes]]
) -> list[HostProcess]:
    """Waits until all workers have all their connections; they are numbered as they were started."""
    greeted: queue.SimpleQueue[_Greeted] = queue.SimpleQueue()
    threading.Thread(target=_accept, args=(server, secret, greeted), daemon=True).start()
    by_pid = {process.pid: n for n, process in enumerate(processes)}
    connections: list[dict[str, Connection[Any]]] = [{} for _ in processes]
    hellos: dict[int, Hello] = {}
    deadline = time.monotonic() + _START_SECONDS
    while any(len(of_host) < len(CHANNELS) for of_host in connections):
        for n, process in enumerate(processes):
            if process.poll() is not None:
                raise HostError(f"host {n} did not start{ending(process)}")
        if time.monotonic() > deadline:
            missing = next(n for n, of_host in enumerate(connections) if len(of_host) < len(CHANNELS))
            raise HostError(f"host {missing} did not connect in {_START_SECONDS:.0f} seconds")
        try:
            connection, hello = greeted.get(timeout=0.2)
        except queue.Empty:
            continue
        index = by_pid.get(hello.pid)
        if index is None or hello.channel in connections[index]:
            connection.close()
            continue
        if hello.versions != versions():
            raise HostError(
                f"host {index} runs pathways {hello.versions[0]}, jaxlib {hello.versions[1]} and Python "
                f"{hello.versions[2]}, but the controller {', '.join(versions())}"
            )
        connections[index][hello.channel] = connection
        hellos[index] = hello
    return [HostProcess(n, process, connections[n], hellos[n]) for n, process in enumerate(processes)]


def _accept(server: socket.socket, secret: bytes, greeted: queue.SimpleQueue[_Greeted]) -> None:
    """Greets whoever connects, each in a thread: one that says nothing holds up nobody else."""
    strangers = threading.BoundedSemaphore(_MOST_STRANGERS)

    def greet(sock: socket.socket) -> None:
        try:
            greeted.put(greet_worker(sock, secret))
        except (MessageError, ConnectionEnded) as error:
            log.warning("refused a connection: %s", error)
            sock.close()
        strangers.release()

    # Ends when the socket is shut down.
    with contextlib.suppress(OSError):
        while True:
            sock, _ = server.accept()
            strangers.acquire()
            threading.Thread(target=greet, args=(sock,), daemon=True).start()

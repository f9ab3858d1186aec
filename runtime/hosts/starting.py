"""Starts workers as children of the controller, and lets nobody else in."""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Sequence

from pathways.runtime.hosts.controller import Controller, HostError, HostProcess, status
from pathways.runtime.hosts.messages import MessageError, versions
from pathways.runtime.hosts.wire import HANDSHAKE_SECONDS, ConnectionEnded, greet_worker

log = logging.getLogger("pathways")


def start(count: int, devices_per_host: int) -> Controller:
    """Starts workers as children of this process, each with its own JAX.

    Args:
      count: how many.
      devices_per_host: CPU devices of each.

    Raises:
      HostError: one of them does not start; says which and why.
    """
    secret = secrets.token_bytes(32)
    processes: list[subprocess.Popen[bytes]] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(HANDSHAKE_SECONDS)
        try:
            for _ in range(count):
                processes.append(_spawn(server.getsockname()[1], secret, devices_per_host))
            hosts = _greet_all(server, secret, processes)
        except BaseException:
            for process in processes:
                process.kill()
                process.wait()
            raise
    return Controller(hosts)


def _spawn(port: int, secret: bytes, devices: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    # The controller writes what its workers record.
    environment.pop("PW_TRACE", None)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "pathways.runtime.hosts.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=environment,
    )
    config = {"port": port, "secret": secret.hex(), "cpu_devices": devices}
    assert process.stdin is not None
    # Not on the command line, which everyone may read.
    process.stdin.write(json.dumps(config).encode() + b"\n")
    process.stdin.flush()
    return process


def _greet_all(
    server: socket.socket, secret: bytes, processes: Sequence[subprocess.Popen[bytes]]
) -> list[HostProcess]:
    """Waits until all workers have connected; they are numbered as they were started."""
    by_pid = {process.pid: n for n, process in enumerate(processes)}
    hosts: dict[int, HostProcess] = {}
    while len(hosts) < len(processes):
        ended = next((n for n, process in enumerate(processes) if process.poll() is not None), None)
        if ended is not None:
            raise HostError(f"host {ended} did not start{status(processes[ended])}")
        try:
            sock, _ = server.accept()
        except TimeoutError:
            missing = [n for n in range(len(processes)) if n not in hosts]
            raise HostError(f"host {missing[0]} did not connect in {HANDSHAKE_SECONDS:.0f} seconds") from None
        try:
            connection, hello = greet_worker(sock, secret)
        except (MessageError, ConnectionEnded) as error:
            log.warning("refused a connection: %s", error)
            continue
        index = by_pid.get(hello.pid)
        if index is None or index in hosts:
            connection.close()
            continue
        if hello.versions != versions():
            raise HostError(
                f"host {index} runs pathways {hello.versions[0]}, jaxlib {hello.versions[1]} and Python "
                f"{hello.versions[2]}, but the controller {', '.join(versions())}"
            )
        hosts[index] = HostProcess(index, processes[index], connection, hello)
    return [hosts[index] for index in range(len(processes))]

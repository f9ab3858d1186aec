"""Network between workers of this machine that can be cut between two of them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pathways.runtime.clusters import starter_choice
from pathways.runtime.control.gang import START_SECONDS
from pathways.runtime.hosts.cluster.host import WorkerHandle
from pathways.runtime.hosts.cluster.starter import Starter

NAME = "cable"
"""Prefix of the names of the threads that carry data over cables."""


class Cable:
    """Proxy from a port of its own to an address; it drops the data of processes that are cut off."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = host, int(port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:" + str(self._server.getsockname()[1])
        # The processes that are cut off, and the ends of all connections.
        self._cut: set[int] = set()
        self._ends: list[socket.socket] = []
        _start(self._accept)

    def cut(self, pid: int) -> None:
        """Drops all further data from and to a process."""
        self._cut.add(pid)

    def close(self) -> None:
        """Closes it and all connections over it."""
        for end in [self._server, *self._ends]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError), self._server:
            while True:
                near, (_, port) = self._server.accept()
                far = socket.create_connection(self._target)
                self._ends += [near, far]
                for source, target in ((near, far), (far, near)):
                    _start(self._carry, source, target, port)

    def _carry(self, source: socket.socket, target: socket.socket, port: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if not any(_has(pid, port) for pid in [*self._cut]):
                    target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()


class CabledStarter(Starter):
    """Starter of workers that reach each other over cables."""

    cables: dict[int, list[Cable]] = {}

    def start(
        self, islands: Sequence[int], stop: threading.Event, contact: float = START_SECONDS
    ) -> list[list[WorkerHandle]]:
        """See `Starter.start`."""
        gangs = super().start(islands, stop, contact)
        for host in (host for gang in gangs for host in gang):
            for cable in self.cables.pop(host.index, []):
                cable.close()
            data, probe = (Cable(address) for address in (host.ready.data_address, host.ready.probe_address))
            self.cables[host.index] = [data, probe]
            host.ready = msgspec.structs.replace(
                host.ready, data_address=data.address, probe_address=probe.address
            )
        return gangs

    def close(self) -> None:
        """See `Starter.close`."""
        super().close()
        for cables in self.cables.values():
            for cable in cables:
                cable.close()
        self.cables.clear()


def install() -> None:
    """Makes `pathways.connect` start workers that reach each other over cables."""
    starter_choice.Starter = CabledStarter  # type: ignore[misc]


def cut(one: WorkerHandle, other: WorkerHandle) -> None:
    """Cuts the network between two workers, and no other; both still reach the controller."""
    for host, away in ((one, other), (other, one)):
        for cable in CabledStarter.cables.get(host.index, []):
            cable.cut(away.process.pid)


def _has(pid: int, port: int) -> bool:
    """Returns whether a process has the connection with a port of this machine."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{fields[9]}]" for fields in lines if fields[1].endswith(f":{port:04X}")}
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(file.readlink()) in sockets:
                    return True
    return False


def _start(work: object, *args: object) -> None:
    threading.Thread(target=work, args=args, name=NAME, daemon=True).start()  # type: ignore[arg-type]

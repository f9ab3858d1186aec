"""Bare processes that `bench/hosts.py` compares with: they do the same by hand, over bare sockets and JAX's
own transfer server, without programs, names or errors.

Run as a process it is one of these: it connects to the port that is its argument, sends the address of its
transfer server, and runs the commands that it receives, a line of words each.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

_LINE = 4096


class Bare:
    """Bare processes, and their sockets.

    Args:
      count: their number.
    """

    def __init__(self, count: int) -> None:
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        with socket.create_server(("127.0.0.1", 0)) as server:
            command = [sys.executable, __file__, str(server.getsockname()[1])]
            self._processes = [
                subprocess.Popen([*command, str(n)], env=environment, stdout=subprocess.DEVNULL)
                for n in range(count)
            ]
            self.sockets = [server.accept()[0] for _ in range(count)]
        for sock in self.sockets:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        replies = sorted((int(sock.recv(_LINE).split()[0]), n) for n, sock in enumerate(self.sockets))
        self.sockets = [self.sockets[n] for _, n in replies]
        # Distinguishes rounds.
        self._runs = itertools.count(1)
        self._broadcast(f"peers {' '.join(self._addresses())}")

    def _addresses(self) -> list[str]:
        for sock in self.sockets:
            sock.sendall(b"address")
        return [sock.recv(_LINE).decode() for sock in self.sockets]

    def _broadcast(self, words: str) -> None:
        """Sends one line to all, then waits for all."""
        for sock in self.sockets:
            sock.sendall(words.encode())
        for sock in self.sockets:
            sock.recv(_LINE)

    def fan_out(self) -> None:
        """Sends a message of the size of a step's to all, and reads a reply of each."""
        self._broadcast("idle" + " " * 60)

    def ring(self, hops: int, nbytes: int = 4) -> None:
        """Sends a value around the ring, one pull for each hop."""
        self._broadcast(f"ring {next(self._runs)} {hops} {nbytes}")

    def move(self, nbytes: int) -> None:
        """Sends an array from the first process to the second."""
        self._broadcast(f"move {next(self._runs)} {nbytes}")

    def behind(self, large: int, small: int) -> None:
        """Sends a small array on a connection of its own, while a large one is in flight."""
        self._broadcast(f"behind {next(self._runs)} {large} {small}")

    def passed(self) -> None:
        """Waits for the large array of `behind`."""
        self._broadcast("passed")

    def close(self) -> None:
        """Terminates the processes."""
        for sock in self.sockets:
            sock.close()
        for process in self._processes:
            process.wait()


@contextlib.contextmanager
def bare(count: int) -> Iterator[Bare]:
    """Yields bare processes, which live as long as the context."""
    processes = Bare(count)
    try:
        yield processes
    finally:
        processes.close()


class _Process:
    """One of the bare processes."""

    def __init__(self, index: int) -> None:
        import jax
        from jax.experimental import transfer

        self.jax = jax
        self.index = index
        device = jax.devices()[0]
        self.sharding = jax.sharding.SingleDeviceSharding(device)
        self.server = transfer.start_transfer_server(
            device.client, "127.0.0.1:0", ["127.0.0.1:0"] * 2, transfer_size=4 << 20
        )
        self.connections: list[Any] = []
        self.values: dict[int, Any] = {}
        self.passing: Any = None

    def peers(self, *addresses: str) -> str:
        """Connects to all others, twice: for small and for large arrays."""
        self.connections = [[self.server.connect(a) for a in addresses] for _ in range(2)]
        return "ok"

    def value(self, nbytes: int) -> Any:
        """Returns an array that is ready."""
        if nbytes not in self.values:
            host = np.zeros(nbytes // 4, np.float32)
            self.values[nbytes] = self.jax.block_until_ready(self.jax.device_put(host, self.sharding))
        return self.values[nbytes]

    def pull(self, uuid: int, source: int, nbytes: int, large: bool = False) -> Any:
        """Pulls an array of another process."""
        shape = self.jax.ShapeDtypeStruct((nbytes // 4,), np.float32, sharding=self.sharding)
        return self.connections[large][source].pull(uuid, [shape])[0]

    def ring(self, run: str, hops: str, nbytes: str) -> str:
        """Pulls hop k from process k to process k + 1, around the ring."""
        count = len(self.connections[0])
        last = None
        for hop in range(int(hops)):
            uuid = int(run) * 1000 + hop
            if hop % count == self.index:
                array = self.value(int(nbytes)) if last is None else last
                self.server.await_pull(uuid, [array])
            if (hop + 1) % count == self.index:
                last = self.pull(uuid, hop % count, int(nbytes))
        if last is not None:
            last.block_until_ready()
        return "ok"

    def move(self, run: str, nbytes: str) -> str:
        """Sends an array from the first process to the second, which replies when it has it."""
        uuid = int(run) * 1000
        if self.index == 0:
            self.server.await_pull(uuid, [self.value(int(nbytes))])
        else:
            self.pull(uuid, 0, int(nbytes), large=True).block_until_ready()
        return "ok"

    def behind(self, run: str, large: str, small: str) -> str:
        """Sends a small array on a connection of its own after a large one."""
        uuid = int(run) * 1000
        if self.index == 0:
            self.server.await_pull(uuid, [self.value(int(large))])
            self.server.await_pull(uuid + 1, [self.value(int(small))])
        else:
            self.passing = self.pull(uuid, 0, int(large), large=True)
            self.pull(uuid + 1, 0, int(small)).block_until_ready()
        return "ok"

    def passed(self) -> str:
        """Waits for the large array of `behind`."""
        if self.passing is not None:
            self.passing.block_until_ready()
            self.passing = None
        return "ok"


def main() -> None:
    """Runs one process until the other side disconnects."""
    process = _Process(int(sys.argv[2]))
    sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(f"{process.index} is there".encode())
    while words := sock.recv(_LINE).split():
        match words:
            case [b"idle"]:
                sock.sendall(b"ok")
            case [b"address"]:
                sock.sendall(process.server.address().encode())
            case [name, *rest]:
                given = [word.decode() for word in rest]
                sock.sendall(getattr(process, name.decode())(*given).encode())
    os._exit(0)


if __name__ == "__main__":
    main()

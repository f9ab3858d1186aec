"""Inside of a lab: machines that are network namespaces, and the switch between them.

Runs as the first process of namespaces of its own (`unshare --net --mount --pid --fork`). Each machine is a
process that sleeps in further namespaces: network, mounts and host name. A veth pair leads from each to this
process, which reads frames from AF_PACKET sockets and writes them to those of other machines: later, or
never, as the settings of the link require. Changes of links come on standard input, one line of JSON each.
When that ends, this process ends, and with it, as the first of its PID namespace, all others of the lab.

It uses only the standard library, and the commands `ip`, `mount`, `unshare` and `sleep`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path("/run/pathways-lab")
"""Folder of the machines, for processes in the lab: for each address the process with its namespaces."""

ENTER = FOLDER / "enter"
"""Command that runs another one on a machine: `enter 10.77.0.2 python -c ...`."""

ADDRESS = "10.77.0.{}"
"""Address of a machine; machine 0 has 10.77.0.1."""

_QUEUED = 256 << 10
"""Bytes that wait at a link with a rate; more are dropped, as by a router."""

_FRAME = 1 << 16
_SOL_PACKET, _PACKET_IGNORE_OUTGOING = 263, 23
_SO_RCVBUFFORCE, _SO_SNDBUFFORCE = 33, 32
_SIOCETHTOOL = 0x8946
_OFFLOADS = (0x17, 0x1F, 0x24, 0x2C)
"""Checksums, segmentation of TCP and in general, and joining of received segments. With these on, the switch
would get frames without a checksum, or frames that no cable carries."""

_PR_SET_TIMERSLACK = 29


@dataclasses.dataclass
class Link:
    """One way from a machine to another.

    Attributes:
      delay: seconds that a frame takes.
      loss: the fraction of frames that are lost.
      rate: bits per second; None for no limit.
      is_cut: whether nothing arrives.
      free: when the link will have sent all frames that wait for its rate.
    """

    delay: float = 0.0
    loss: float = 0.0
    rate: float | None = None
    is_cut: bool = False
    free: float = 0.0

    def arrival(self, size: int, now: float) -> float | None:
        """Returns when a frame arrives that is sent now; None if it is lost."""
        if self.is_cut or (self.loss and random.random() < self.loss):
            return None
        if self.rate is None:
            return now + self.delay
        begin = max(now, self.free)
        if (begin - now) * self.rate > 8 * _QUEUED:
            return None
        self.free = begin + 8 * size / self.rate
        return self.free + self.delay


class Switch:
    """Switch that carries frames between machines.

    Args:
      ports: the socket of each machine's link.
    """

    def __init__(self, ports: list[socket.socket]) -> None:
        self._ports = ports
        self._macs = {mac(number): number for number in range(len(ports))}
        pairs = itertools.permutations(range(len(ports)), 2)
        self._links = {pair: Link() for pair in pairs}
        self._order = itertools.count()
        self._due: list[tuple[float, int, int, bytes]] = []

    def run(self) -> None:
        """Carries frames until standard input ends."""
        os.set_blocking(0, False)
        numbers = {port.fileno(): number for number, port in enumerate(self._ports)}
        poll = select.epoll()
        for file in (0, *numbers):
            poll.register(file, select.EPOLLIN)
        rest = b""
        while True:
            # epoll counts milliseconds, and delays of links are shorter; select takes fractions.
            wait = None if not self._due else max(0.0, self._due[0][0] - time.monotonic())
            readable, _, _ = select.select([poll], [], [], wait)
            for file, _ in poll.poll(0) if readable else ():
                if file:
                    self._read(numbers[file])
                    continue
                try:
                    data = os.read(0, _FRAME)
                except BlockingIOError:
                    continue
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._set(json.loads(line))
                    print("ok", flush=True)
            self._write()

    def _set(self, settings: dict[str, object]) -> None:
        """Changes the fields of `Link` given besides `pairs`, on these links."""
        pairs = settings.pop("pairs")
        assert isinstance(pairs, list)
        for pair in pairs:
            for name, value in settings.items():
                setattr(self._links[tuple(pair)], name, value)

    def _read(self, number: int) -> None:
        port = self._ports[number]
        try:
            while True:
                frame = port.recv(_FRAME)
                to = self._macs.get(frame[:6])
                if to is None or to == number:
                    continue
                when = self._links[number, to].arrival(len(frame), time.monotonic())
                if when is not None:
                    heapq.heappush(self._due, (when, next(self._order), to, frame))
        except BlockingIOError:
            return

    def _write(self) -> None:
        due, now = self._due, time.monotonic()
        while due and due[0][0] <= now:
            _, _, to, frame = heapq.heappop(due)
            try:
                self._ports[to].send(frame)
            except OSError:
                # The frame is dropped, as a real switch does with a full buffer.
                continue


def mac(number: int) -> bytes:
    """Returns the address of a machine's end of its cable."""
    return bytes([2, 0, 0, 0, 0, number + 1])


def port(name: str) -> socket.socket:
    """Opens a socket that reads and writes frames of an interface."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    sock.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    for buffer in (_SO_RCVBUFFORCE, _SO_SNDBUFFORCE):
        sock.setsockopt(socket.SOL_SOCKET, buffer, 32 << 20)
    sock.bind((name, 0))
    sock.setblocking(False)
    return sock


def disable_offloads(name: str) -> None:
    """Disables offloads of an interface, so that it sends frames as a cable carries them."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for command in _OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            request = struct.pack("16sP", name.encode(), ctypes.addressof(value))
            fcntl.ioctl(sock, _SIOCETHTOOL, request.ljust(40, b"\0"))


def build(count: int, shared: list[str]) -> None:
    """Creates the machines, and their links to this process.

    Args:
      count: number of machines.
      shared: folders below /tmp that all of them see; each has its own /tmp otherwise.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    run("mount", "-t", "tmpfs", "tmpfs", FOLDER)
    hosts = [f"{ADDRESS.format(n + 1)} machine{n}" for n in range(count)]
    (FOLDER / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts, ""]))
    ENTER.write_text(
        f'#!/bin/sh\nhost=$1; shift\nexec nsenter -t "$(cat {FOLDER}/"$host")" -n -m -u -- "$@"\n'
    )
    ENTER.chmod(0o755)
    for number, folder in enumerate(shared):
        (FOLDER / f"shared{number}").mkdir()
        run("mount", "--bind", folder, FOLDER / f"shared{number}")
    holders = [hold(number, shared) for number in range(count)]
    for number, holder in enumerate(holders):
        (FOLDER / ADDRESS.format(number + 1)).write_text(str(holder))
        commands = [
            f"link add s{number} type veth peer name eth0 netns {holder}",
            f"link set s{number} addrgenmode none",
            f"link set s{number} up",
        ]
        run("ip", "-batch", "-", input="\n".join(commands))
        inside = [
            "link set lo up",
            "link set eth0 addrgenmode none",
            f"link set eth0 address {mac(number).hex(':')}",
            "link set eth0 up",
            f"addr add {ADDRESS.format(number + 1)}/24 dev eth0",
            *(
                f"neigh replace {ADDRESS.format(n + 1)} lladdr {mac(n).hex(':')} dev eth0 nud permanent"
                for n in range(count)
                if n != number
            ),
        ]
        run("nsenter", "-t", holder, "-n", "ip", "-batch", "-", input="\n".join(inside))
        disable_offloads(f"s{number}")
        run("nsenter", "-t", holder, "-n", sys.executable, "-I", __file__, "--no-offloads")


def hold(number: int, shared: list[str]) -> int:
    """Starts the process that keeps the namespaces of a machine; returns its number."""
    binds = [
        f"mkdir -p '{folder}' && mount --bind {FOLDER}/shared{n} '{folder}'"
        for n, folder in enumerate(shared)
    ]
    script = " && ".join(
        [
            "mount -t tmpfs tmpfs /tmp",
            *binds,
            "mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm",
            f"mount --bind {FOLDER}/hosts /etc/hosts",
            f"hostname machine{number}",
            "echo ready",
            "exec sleep infinity",
        ]
    )
    holder = subprocess.Popen(
        ["unshare", "-n", "-m", "-u", "sh", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    if holder.stdout.readline() != b"ready\n":
        raise SystemExit(f"machine {number} does not start")
    return holder.pid


def run(*command: object, input: str | None = None) -> None:
    """Runs a command that must succeed."""
    subprocess.run([str(word) for word in command], input=input, text=True, check=True)


def main() -> None:
    """Creates a lab of the given number of machines, prints `ok`, and carries frames."""
    if sys.argv[1] == "--no-offloads":
        disable_offloads("eth0")
        return
    count, shared = int(sys.argv[1]), sys.argv[2:]
    build(count, shared)
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    # The first process of a PID namespace inherits orphans, which would stay zombies otherwise.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    switch = Switch([port(f"s{number}") for number in range(count)])
    print("ok", flush=True)
    switch.run()


if __name__ == "__main__":
    main()

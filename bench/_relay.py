"""Bare relay: the floor of what a service does for a step.

A process passes messages of a client on to workers, and their replies back, as bytes over sockets: without
programs, arrays, an order, shares or losses. The client and the workers are processes, too; a worker replies
when its device, a timer, would be done.
"""

from __future__ import annotations

import collections
import heapq
import select
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _cores import cpu_seconds

_STEP = 96
"""Bytes of the message of a step; the first is the number of the worker."""

_REPLY = 48
"""Bytes of the reply of a worker; the first is its number."""

_AHEAD = 4
"""Steps in flight on each worker."""

_WARM_UP = 0.5


def seconds_of_a_step(workers: int, seconds: float, measured: float = 4.0) -> float:
    """Returns the seconds of CPU of a relay for a step.

    Args:
      workers: the number of workers, which run steps at the same time.
      seconds: the duration of a step.
      measured: how long steps are counted.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = str(Path(folder, "socket"))
        relay = _process("relay", place, workers)
        assert relay.stdout is not None
        relay.stdout.readline()
        peers = [_process("work", place, workers, seconds), _process("submit", place, workers)]
        time.sleep(_WARM_UP)
        try:
            counts, used = [], []
            for pause in (0.0, measured):
                time.sleep(pause)
                used.append(cpu_seconds([relay.pid]))
                counts.append(_count(relay))
        finally:
            for process in (*peers, relay):
                process.kill()
                process.communicate()
        return (used[1] - used[0]) / max(counts[1] - counts[0], 1)


def _process(role: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, role, *map(str, arguments)]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    # Processes write to connections of those that were killed before them.
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null, text=True)


def _count(relay: subprocess.Popen[str]) -> int:
    assert relay.stdin is not None
    assert relay.stdout is not None
    relay.stdin.write("\n")
    relay.stdin.flush()
    return int(relay.stdout.readline())


def _relay(place: str, workers: int) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(place)
        server.listen(workers + 1)
        print("ready", flush=True)
        peers = [server.accept()[0] for _ in range(workers + 1)]
    # The first byte of each is its number; that of the client is the number of workers.
    numbered = {sock.recv(1)[0]: sock for sock in peers}
    client = numbered.pop(workers)
    poll = select.poll()
    for sock in (client, *numbered.values()):
        poll.register(sock, select.POLLIN)
    poll.register(sys.stdin, select.POLLIN)
    by_descriptor = {sock.fileno(): sock for sock in numbered.values()}
    steps = 0
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == sys.stdin.fileno():
                sys.stdin.readline()
                print(steps, flush=True)
            elif descriptor == client.fileno():
                received = client.recv(1 << 16)
                for at in range(0, len(received), _STEP):
                    numbered[received[at]].send(received[at : at + _STEP])
            else:
                received = by_descriptor[descriptor].recv(1 << 16)
                steps += len(received) // _REPLY
                client.send(received)


def _connected(place: str, number: int) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(place)
    sock.send(bytes([number]))
    return sock


def _work(place: str, workers: int, seconds: float) -> None:
    socks = [_connected(place, number) for number in range(workers)]
    poll = select.poll()
    numbers = {sock.fileno(): number for number, sock in enumerate(socks)}
    for sock in socks:
        poll.register(sock, select.POLLIN)
    free = dict.fromkeys(range(workers), 0.0)
    ends: list[tuple[float, int]] = []
    while True:
        wait = None if not ends else max(0.0, ends[0][0] - time.monotonic()) * 1e3
        for descriptor, _ in poll.poll(wait):
            number = numbers[descriptor]
            for _ in range(len(socks[number].recv(1 << 16)) // _STEP):
                free[number] = max(free[number], time.monotonic()) + seconds
                heapq.heappush(ends, (free[number], number))
        while ends and ends[0][0] <= time.monotonic():
            number = heapq.heappop(ends)[1]
            socks[number].send(bytes([number]) + bytes(_REPLY - 1))


def _submit(place: str, workers: int) -> None:
    sock = _connected(place, workers)
    due = collections.deque(n for _ in range(_AHEAD) for n in range(workers))
    while True:
        while due:
            sock.send(bytes([due.popleft()]) + bytes(_STEP - 1))
        received = sock.recv(1 << 16)
        due.extend(received[at] for at in range(0, len(received), _REPLY))


if __name__ == "__main__":
    role, place, count, *rest = sys.argv[1:]
    match role:
        case "relay":
            _relay(place, int(count))
        case "work":
            _work(place, int(count), float(rest[0]))
        case _:
            _submit(place, int(count))

"""Hosts whose devices are timers: a step takes the time that it states, and no core is busy with it.

All hosts are one process with one thread. They have no JAX; a controller does not see that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _cores import cpu_seconds, idle_seconds
from _idle import load_idle

from pathways.runtime.control.records.reports import HostReport
from pathways.runtime.hosts.client.local_session import LocalSession
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.cluster.starter import Starter
from pathways.runtime.hosts.cluster.worker_cluster import WorkerCluster
from pathways.runtime.hosts.launch.options import HostOptions
from pathways.runtime.hosts.launch.settings import Island, Settings
from pathways.runtime.hosts.launch.sockets import connect_to
from pathways.runtime.hosts.protocol.acceptor import open_connection
from pathways.runtime.hosts.protocol.frames import decode_for_worker
from pathways.runtime.hosts.protocol.join_messages import WorkerConfig
from pathways.runtime.hosts.protocol.messages import (
    CHANNELS,
    Coordinator,
    Done,
    Load,
    LoadDone,
    Ping,
    Pong,
    Purpose,
    Ready,
    Report,
    RequestReport,
    Run,
    StepMemory,
)
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded

_REST = 0.3
"""Seconds in which the usage without any step is measured."""

_FEW = 900
"""A number of connections above the limit of `select`."""


class TimerHosts:
    """`Launcher` of hosts whose devices are timers.

    Args:
      count: their number.

    Attributes:
      process: the process of all of them.
    """

    pid = 0

    def __init__(self, count: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"import _timers; _timers.serve({count})"],
            stdin=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent,
        )

    def launch(
        self, configs: Sequence[WorkerConfig], seconds: float, stop: threading.Event
    ) -> list[TimerHosts]:
        """See `Launcher.launch`."""
        assert self.process.stdin is not None
        for config in configs:
            self.process.stdin.write(config.to_json() + "\n")
        self.process.stdin.flush()
        return [self for _ in configs]

    def exit_status(self, timeout: float) -> str | None:
        """See `WorkerProcess.exit_status`."""
        return None if self.process.poll() is None else f"exit code {self.process.wait(timeout)}"

    def kill(self) -> None:
        """See `WorkerProcess.kill`."""
        self.process.kill()

    def last_lines(self) -> tuple[str, ...]:
        """See `WorkerProcess.last_lines`."""
        return ()

    def close(self) -> None:
        """See `Launcher.close`."""
        self.process.kill()
        self.process.wait()


class _Hosts:
    """The hosts, in their process."""

    def __init__(self) -> None:
        self._heard: list[int] = []
        self._poll = select.poll()
        self._connections: dict[int, Connection[Any]] = {}
        # The connection on which a host replies to messages of another one.
        self._steps: dict[int, Connection[Any]] = {}
        self._seconds: dict[int, float] = {}
        self._free: dict[int, float] = {}
        # The ends of steps, their numbers, the connections of replies, and their times on the device.
        self._ends: list[tuple[float, int, int, float]] = []

    def connect(self, config: WorkerConfig) -> None:
        """Connects a host to its controller."""
        own = {}
        for channel in CHANNELS:
            purpose = Purpose(channel, "worker", config.host, config.epoch, "controller")
            sock = connect_to(config.controller, config.heartbeat)
            own[channel] = open_connection(sock, bytes.fromhex(config.secret), purpose, decode_for_worker)
        if config.size > 1 and config.rank == 0:
            # Nothing connects to it: the hosts of an island send each other no messages.
            own["watch"].send(Coordinator("127.0.0.1:1"))
        own["watch"].send(Ready("cpu", (config.rank,), (None,), "127.0.0.1:1", "127.0.0.1:2"))
        steps = own["steps"].fileno()
        self._free[steps] = 0.0
        for connection in own.values():
            self._heard.append(connection.fileno())
            self._poll.register(connection.fileno(), select.POLLIN)
            self._steps[connection.fileno()] = own["steps"]
        self._connections |= {connection.fileno(): connection for connection in own.values()}

    def go_on(self) -> None:
        """Handles messages, and replies to finished steps, until it is terminated."""
        while True:
            self.poll(max(0.0, self._ends[0][0] - time.monotonic()) if self._ends else None)

    def poll(self, seconds: float | None) -> None:
        """Handles messages once; waits up to some seconds, None for no limit."""
        for number in self._ready(seconds):
            for message in self._connections[number].receive_available():
                self._take(number, message)
        now = time.monotonic()
        while self._ends and self._ends[0][0] <= now:
            _, run, steps, took = heapq.heappop(self._ends)
            self._connections[steps].send(Done(run, None, {}, took))

    def _ready(self, seconds: float | None) -> list[int]:
        """Returns the connections with messages."""
        if len(self._heard) < _FEW:
            # Other calls wait for whole milliseconds.
            return select.select(self._heard, (), (), seconds)[0]
        return [number for number, _ in self._poll.poll(None if seconds is None else seconds * 1e3)]

    def _take(self, number: int, message: object) -> None:
        match message:
            case RequestReport(request):
                self._connections[number].send(Report(request, HostReport(0, 0, (), ())))
            case Ping(ping):
                self._connections[number].send(Pong(ping))
            case Run():
                took = self._seconds[message.program]
                free = self._free[number] = max(self._free[number], time.monotonic()) + took
                heapq.heappush(self._ends, (free, message.run, number, took))
            case Load():
                # Its name is its time, and the bytes of its results if they count.
                seconds, _, allocated = message.name.partition(" ")
                self._seconds[message.program] = float(seconds)
                memory = StepMemory(((0,),), (int(allocated or 0),), (0,), ())
                self._steps[number].send(LoadDone(message.request, None, memory=memory))
            case _:
                pass


class TimedCluster:
    """Controller of hosts whose devices are timers, each an island of its own, until it is closed.

    Args:
      hosts: their number.
      ahead: the limit of steps in flight.
    """

    def __init__(self, hosts: int, ahead: int = 8) -> None:
        self.count = hosts
        self._hosts = TimerHosts(hosts)
        settings = Settings((Island(),) * hosts, options=HostOptions(ahead=ahead))
        self._controller = LocalSession(WorkerCluster(Starter(settings, self._hosts), settings))
        self._arguments: dict[int, tuple[int, ...]] = dict.fromkeys(range(hosts), ())

    def __enter__(self) -> TimedCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._controller.close()
        self._hosts.close()

    def measure(self, seconds: float, steps: int) -> Measured:
        """Measures steps that take devices some seconds each, as far ahead as possible."""
        program = load_idle(self._controller, self.count, str(seconds))
        self._run(program, 20)
        resting = self._seconds()
        time.sleep(_REST)
        before = self._seconds()
        self._run(program, steps)
        after = self._seconds()
        took = after[0] - before[0]
        # Heartbeats to hosts are no part of steps.
        used = [
            max(0.0, b - a - (a - r) / (before[0] - resting[0]) * took) / steps
            for r, a, b in zip(resting[1:3], before[1:3], after[1:3], strict=True)
        ]
        return Measured(steps / took, *used, (after[3] - before[3]) / took)

    def _seconds(self) -> tuple[float, float, float, float]:
        """Returns a clock, CPU seconds of the controller and of the hosts, and idle seconds of cores."""
        hosts = cpu_seconds([self._hosts.process.pid])
        return time.perf_counter(), time.process_time(), hosts, idle_seconds()

    def _run(self, program: HostedProgram, count: int) -> None:
        for _ in range(count):
            last = self._controller.run(program, self._arguments)
        self._controller.wait_for_step(last)


@dataclasses.dataclass(frozen=True)
class Measured:
    """Measurement of steps.

    Attributes:
      rate: steps per second.
      control: seconds of CPU of the controller for a step.
      workers: those of all hosts.
      idle: the number of idle cores.
    """

    rate: float
    control: float
    workers: float
    idle: float


def serve(count: int) -> None:
    """Runs some hosts, one for each line of standard input."""
    hosts = _Hosts()
    for _ in range(count):
        hosts.connect(WorkerConfig.from_json(sys.stdin.readline()))
        # The first may get liveness requests before the last have connected.
        hosts.poll(0.0)
    with contextlib.suppress(ConnectionEnded):
        hosts.go_on()

"""Service of islands whose steps have no work, and its clients, each in a process of its own.

The service is that of `pw-cluster`; only programs are not verified, since they have no computations.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from _cores import cpu_seconds, idle_seconds
from _idle import empty_parts, idle_program
from _timers import TimerHosts

from pathways.runtime.clusters.starter_choice import starter_of
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.cluster.starter import Starter
from pathways.runtime.hosts.launch.settings import Island, Settings
from pathways.runtime.hosts.protocol.acceptor import Acceptor
from pathways.runtime.hosts.protocol.messages import DeviceLayout
from pathways.runtime.hosts.protocol.programs import BoundProgram, SplitProgram
from pathways.runtime.metrics.feed import MetricsFeed
from pathways.runtime.resources.accounts import AccountRecord
from pathways.runtime.resources.manager import ResourceError
from pathways.runtime.resources.status import ServiceStatus
from pathways.runtime.resources.threads import start_thread
from pathways.runtime.service.client.attaching import Attachment, attach_at
from pathways.runtime.service.daemon import snapshot_of
from pathways.runtime.service.protocol.admin import ChangeRequest
from pathways.runtime.service.protocol.service_messages import decode_for_service
from pathways.runtime.service.protocol.tokens import ClientTokens, ServiceHandshake
from pathways.runtime.service.service import Service
from pathways.runtime.service.sharing.memory import DeviceLimits
from pathways.runtime.service.sharing.rules import ClientRules, SharingRules

_SECRET = bytes(range(32))
"""Secret that guards only steps without work, behind a socket in a private folder."""


WARM_UP = 1.0


@dataclasses.dataclass(frozen=True)
class ServedSteps:
    """Steps of clients that are processes, within some time.

    Attributes:
      done: the number of finished steps of each client.
      seconds: the elapsed time.
      service: seconds of CPU of the service.
      hosts: seconds of CPU of all hosts, if their devices are timers.
      clients: seconds of CPU of all clients.
      idle: idle seconds of all cores, added up.
    """

    done: Mapping[str, int]
    seconds: float
    service: float
    hosts: float
    clients: float
    idle: float

    @property
    def steps(self) -> int:
        """The number of steps of all clients."""
        return sum(self.done.values())

    @property
    def each(self) -> float:
        """The seconds of CPU of the service for a step."""
        return self.service / max(self.steps, 1)


class ServedIslands:
    """Service with islands, until it is closed.

    Args:
      count: the number of islands.
      weights: the weights of clients, by their names.
      hosts: the number of hosts of each island.
      is_timed: whether their devices are timers; otherwise they are workers with JAX.
      has_metrics: whether it serves metrics, at `metrics_port`.
      quotas: the bytes that clients may hold on each device, by their names; with any, memory is limited.
    """

    def __init__(
        self,
        count: int,
        weights: Mapping[str, float] | None = None,
        *,
        hosts: int = 1,
        is_timed: bool = True,
        has_metrics: bool = False,
        quotas: Mapping[str, int] | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._place = str(Path(self._folder.name, "socket"))
        arguments = json.dumps(
            {
                "place": self._place,
                "count": count,
                "hosts": hosts,
                "weights": weights or {},
                "is_timed": is_timed,
                "quotas": quotas or {},
                "has_metrics": has_metrics,
            }
        )
        self._process = _python("serve", arguments)
        self._clients: list[subprocess.Popen[str]] = []
        self._timers: list[int]
        self._timers, self.metrics_port = json.loads(line_of(self._process))

    def __enter__(self) -> ServedIslands:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_clients()
        # This closes its standard input, at which it exits.
        self._process.communicate()
        self._folder.cleanup()

    def attach(self, name: str) -> HostSession:
        """Connects this process as a client."""
        return attach_at(self._place, _SECRET, Attachment("bench", name))

    def start(self, name: str, way: str, **settings: Any) -> subprocess.Popen[str]:
        """Starts a client in a process of its own; `way` is a key of `WAYS`."""
        arguments = json.dumps({"place": self._place, "name": name, "way": way, "settings": settings})
        process = _python("run_client", arguments)
        self._clients.append(process)
        line_of(process)
        return process

    def end_clients(self) -> None:
        """Kills the client processes, and waits until the service has removed them."""
        for process in self._clients:
            process.kill()
            process.communicate()
        self._clients.clear()
        while self.status().clients:
            time.sleep(0.05)

    def status(self) -> ServiceStatus:
        """See `Service.status`."""
        return msgspec.json.decode(self._request("status"), type=ServiceStatus)

    def accounts(self) -> list[AccountRecord]:
        """See `Service.accounts`."""
        return msgspec.json.decode(self._request("accounts"), type=list[AccountRecord])

    def change_quota(self, name: str, quota: int) -> None:
        """Sets the bytes that a client may hold on each device."""
        why = msgspec.json.decode(self._request(f"quota {name} {quota}"), type=str | None)
        assert why is None, why

    def _request(self, what: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return line_of(self._process)

    def measure(self, seconds: float = 5.0) -> ServedSteps:
        """Returns the steps of clients that are processes in some seconds, after a warm-up."""
        time.sleep(WARM_UP)
        before, began, cpu = self.status(), time.perf_counter(), self._seconds()
        time.sleep(seconds)
        after, took = self.status(), time.perf_counter() - began
        used = [b - a for a, b in zip(cpu, self._seconds(), strict=True)]
        counts = {client.name: client.steps_done for client in before.clients}
        done = {client.name: client.steps_done - counts[client.name] for client in after.clients}
        return ServedSteps(done, took, *used)

    def _seconds(self) -> tuple[float, float, float, float]:
        """Returns CPU seconds of the service, of timer hosts and of clients so far, and idle seconds."""
        clients = [process.pid for process in self._clients]
        used = cpu_seconds([self._process.pid]), cpu_seconds(self._timers), cpu_seconds(clients)
        return *used, idle_seconds()


def load(
    controller: HostSession, islands: Sequence[int], seconds: float, allocated: int = 0
) -> HostedProgram:
    """Returns a program whose steps occupy the devices of these islands for some time, if they are timers.

    Args:
      allocated: the bytes on each device that a step needs for new arrays, as the timers report it.
    """
    sizes = {len(controller.pool.gangs[n].hosts) for n in islands}
    program = idle_program(f"{seconds} {allocated}" if allocated else str(seconds), islands, *sizes)
    # The service splits it.
    return controller.load(program, lambda **_: None)  # type: ignore[arg-type, return-value]


class _NoSplitter:
    """Splitter of programs without computations."""

    def split(
        self, owner: object, program: BoundProgram, ahead: int | str, *, multi_host: bool
    ) -> SplitProgram:
        del owner, ahead, multi_host
        return empty_parts(program)

    def cancel(self, owner: object) -> None:
        """No-op: it works on nothing for clients."""

    def close(self) -> None:
        """No-op: it has no resources."""


def serve(arguments: str) -> None:
    """Runs the process of a service: it replies to each input line with its status, and exits at the end."""
    config = json.loads(arguments)
    settings = Settings((Island(hosts=config["hosts"]),) * config["count"])
    timers = TimerHosts(config["count"] * config["hosts"]) if config["is_timed"] else None
    starter = starter_of(settings) if timers is None else Starter(settings, timers)
    clients = {name: ClientRules(weight) for name, weight in config["weights"].items()}
    clients |= {name: ClientRules(memory=count) for name, count in config["quotas"].items()}
    limits = (DeviceLimits(1 << 34, 1 << 32),) * config["count"] if config["quotas"] else ()
    rules = SharingRules(clients=clients, islands=limits)
    service = Service(settings, starter, rules=rules)
    service._control_requests._splitter = _NoSplitter()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(config["place"])
        server.listen(128)
        tokens = ClientTokens(_SECRET, Path(f"{config['place']}.revoked"))
        make_handshake = functools.partial(ServiceHandshake, tokens, service.admits)
        Acceptor(server, make_handshake, decode_for_service, service.accept)

        feed = None
        if config["has_metrics"]:
            take = functools.partial(snapshot_of, "bench", service)
            feed = MetricsFeed(("127.0.0.1", 0), take)
            feed.__enter__()

        def reply_with_status() -> None:
            pids = [] if timers is None else [timers.process.pid]
            print(json.dumps([pids, None if feed is None else feed.address[1]]), flush=True)
            for line in sys.stdin:
                print(msgspec.json.encode(answer_to(service, *line.split())).decode(), flush=True)
            server.shutdown(socket.SHUT_RDWR)
            if feed is not None:
                feed.__exit__(None, None, None)
            service.close()

        start_thread(reply_with_status, "status")
        service.serve()


def answer_to(service: Service, what: str, *rest: str) -> object:
    """Returns the answer of a service to a line of `ServedIslands`."""
    match what:
        case "accounts":
            return service.accounts()
        case "quota":
            return service.change_client(ChangeRequest(rest[0], memory=int(rest[1])))
    return service.status()


def run_client(arguments: str) -> None:
    """Runs the process of a client."""
    config = json.loads(arguments)
    controller = attach_at(config["place"], _SECRET, Attachment("bench", config["name"]))
    with contextlib.suppress(BrokenPipeError):
        WAYS[config["way"]](controller, **config["settings"])


def keep_busy(controller: HostSession, islands: Sequence[Sequence[int]], seconds: float) -> None:
    """Requests steps on islands in turn, up to the limit of unfinished ones."""
    programs = [load(controller, own, seconds) for own in islands]
    print(flush=True)
    while True:
        for program in programs:
            controller.run(program, dict.fromkeys(program.inputs, ()))


def hold(controller: HostSession, arrays: int) -> None:
    """Holds some arrays on each island, and keeps steps in flight."""
    for gang in controller.pool.gangs:
        location = gang.location(DeviceLayout((0,), (1,), ("x",), ((),)))
        for _ in range(arrays):
            controller.put(np.zeros(1 << 10, np.float32), location, controller.take_numbers())
    keep_busy(controller, [[0, 1]], 0.0)


def exceed(controller: HostSession, steps: int) -> None:
    """Requests steps that exceed its quota once the caller has changed it: each is refused."""
    program = load(controller, [0], 0.003, 1 << 20)
    print(flush=True)
    sys.stdin.readline()
    for _ in range(steps):
        step = controller.run(program, {0: ()})
        with contextlib.suppress(ResourceError):
            controller.wait_for_step(step)
            raise AssertionError("a step above the quota has run")
    print(flush=True)
    # Until it is killed.
    sys.stdin.read()


WAYS: dict[str, Callable[..., None]] = {"keep": keep_busy, "hold": hold, "exceed": exceed}


def _python(function: str, arguments: str) -> subprocess.Popen[str]:
    code = f"import sys, _served; _served.{function}(sys.argv[1])"
    return subprocess.Popen(
        [sys.executable, "-c", code, arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
    )


def line_of(process: subprocess.Popen[str]) -> str:
    """Returns the next line of a process, without waiting for ever if it has ended."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a process of the bench has exited with exit code {process.wait()}")
    return line

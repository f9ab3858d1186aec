"""A cluster that many people share: the costs of quotas, accounts and metrics, and the effect of priorities.

  python bench/elastic.py [--json PATH] [--only admission]

In the rows of the scheduler devices and clients are simulated, and CPU time is that of the real scheduler. In
the others the service and each client are processes; devices are timers, and CPUs in the row of drains.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import override

sys.path.insert(0, str(Path(__file__).parents[1] / "test" / "support"))

from _parts import Row, parser_of, run_parts
from _served import WARM_UP, ServedIslands, line_of
from simulated_sharing import DeviceTimers

from pathways.runtime.resources.accounts import summed
from pathways.runtime.service.protocol.folders import ClusterFolder
from pathways.runtime.service.sharing.accounts import StepUse
from pathways.runtime.service.sharing.memory import DeviceLimits, SharedMemory, StepBytes
from pathways.runtime.service.sharing.places import WORK_SECONDS
from pathways.runtime.service.sharing.scheduler_events import OrderedRequest, QueuedStep, WorkSubmitted

ISLANDS = 4
CLIENTS = 8
DEVICES = range(4)
ROUNDS = 5
SECONDS = 4.0
MIB = 1 << 20
CLIENT = Path(__file__).parent / "_moving_client.py"
MOVES = 3
RESTART_SECONDS = 15.0
LIMITS = DeviceLimits(16384 * MIB, 4096 * MIB)


class StateTimers(DeviceTimers):
    """Clients whose steps return a state on four devices, and free the one before."""

    def __init__(self, memory: SharedMemory | None, *, has_accounts: bool) -> None:
        self._last: dict[int, int] = {}
        super().__init__([1.0] * CLIENTS, ISLANDS, memory=memory, is_timed=True)
        state = tuple((device, 64 * MIB) for device in DEVICES)
        self._needs = {} if memory is None else StepBytes(state, state, (state,))
        self._has_accounts = has_accounts
        self._uses: dict[int, dict[int, StepUse]] = {}

    @override
    def _submit_next(self, client: int) -> None:
        (island,), seconds = self._makers[client]
        number = next(self._numbers)
        arguments = {island: (self._last[client],) if client in self._last else ()}
        needs = {island: self._needs} if self._needs else {}
        if client not in self._uses:
            account = self.core.accounts.open(str(client), "step", island, 0.0)
            self._uses[client] = {island: StepUse(account, (256 * MIB,))} if self._has_accounts else {}
        step = QueuedStep(
            client, number, client, arguments, {island: (number,)}, memory=needs, uses=self._uses[client]
        )
        self.submit(step, seconds)
        if client in self._last:
            free = OrderedRequest(client, island, (self._last[client],), context=free_of)
            self.handle(WorkSubmitted(free))
        self._last[client] = number


def free_of() -> None:
    """Marks the frees of these clients."""


def microseconds_an_event(memory: SharedMemory | None, *, has_accounts: bool) -> float:
    """Returns the CPU time of the scheduler for an event."""
    timers = StateTimers(memory, has_accounts=has_accounts)
    for client in range(CLIENTS):
        timers.keep_busy(client, (client % ISLANDS,), 0.003)
    timers.run(SECONDS)
    return timers.cpu_seconds / timers.events * 1e6


def admission() -> Iterator[Row]:
    """Compares events of clients with quotas, with accounts, and with both, with the same without."""
    sides: dict[str, list[float]] = {"none": [], "quotas": [], "accounts": [], "quotas and accounts": []}
    for _ in range(ROUNDS):
        for name, times in sides.items():
            quotas = SharedMemory([LIMITS] * ISLANDS, {}, 1024 * MIB, CLIENTS)
            memory = quotas if "quotas" in name else None
            times.append(microseconds_an_event(memory, has_accounts="accounts" in name))
    without = sides.pop("none")
    for name, times in sides.items():
        yield {
            "case": f"CPU of an event, {CLIENTS} clients on {ISLANDS} islands, {name}",
            "us": statistics.median(times),
            "without us": statistics.median(without),
            "ratio": statistics.median(a / b for a, b in zip(times, without, strict=True)),
            "to reach": "<= 1.5" if name == "quotas" else "-",
        }


class LatencyTimers(DeviceTimers):
    """Clients whose last one runs a step each 50 ms, and measures how long it waits."""

    def __init__(self, priorities: tuple[int, ...]) -> None:
        super().__init__([1.0] * len(priorities), priorities=priorities)
        self.waits: list[float] = []

    def measure(self, client: int, seconds: float, count: int) -> None:
        """Submits small steps, each after the one before is done."""
        for _ in range(count):
            step = QueuedStep(client, next(self._numbers), client, {0: ()}, {0: ()})
            began = self.now
            self.submit(step, seconds)
            while step._left:
                self.run(0.0005)
            self.waits.append(self.now - began - seconds)
            self.run(0.05)

    @override
    def _submit_next(self, client: int) -> None:
        if client in self._makers:
            super()._submit_next(client)


def priorities() -> Iterator[Row]:
    """Measures small steps of a client with a high priority beside three floods of steps of 3 ms."""
    for name, levels in (("priority 1", (0, 0, 0, 1)), ("the same priority", (0, 0, 0, 0))):
        timers = LatencyTimers(levels)
        for client in range(3):
            timers.keep_busy(client, (0,), 0.003, steps=32)
        timers.run(1.0)
        timers.measure(3, 0.0005, 400)
        slowest = statistics.quantiles(timers.waits, n=100)[98]
        yield {
            "case": f"wait of small steps beside three floods, p99, {name}",
            "ms": slowest * 1e3,
            "window ms": WORK_SECONDS * 1e3,
            "ratio": slowest / WORK_SECONDS,
            "to reach": "<= 1.5",
        }


def accounts() -> Iterator[Row]:
    """Compares the device seconds of the accounts with the times of the timers."""
    seconds = {"ann": 0.003, "bob": 0.010, "cid": 0.0005}
    with ServedIslands(2) as served:
        for name, took in seconds.items():
            served.start(name, "keep", islands=[[0], [1]], seconds=took)
        time.sleep(SECONDS)
        served.end_clients()
        uses = {record.client: record.use for record in summed(served.accounts(), ("client",))}
    busy = sum(seconds[name] * use.steps for name, use in uses.items())
    counted = sum(use.device_seconds for use in uses.values())
    yield {
        "case": "device seconds of three clients on two islands",
        "accounts s": counted,
        "timers s": busy,
        "off %": abs(counted / busy - 1) * 100,
        "to reach": "<= 2",
    }


def neighbours() -> Iterator[Row]:
    """Measures steps of a client beside 100 steps of another one that exceed its quota."""
    alone, beside, took = [], [], []
    with ServedIslands(1, quotas={"ann": MIB, "bob": 64 * MIB}) as served:
        for _ in range(ROUNDS):
            served.start("bob", "keep", islands=[[0]], seconds=0.003)
            time.sleep(WARM_UP)
            before, began = steps_of(served, "bob"), time.perf_counter()
            time.sleep(2.0)
            alone.append((steps_of(served, "bob") - before) / (time.perf_counter() - began))
            served.change_quota("ann", MIB)
            exceeds = served.start("ann", "exceed", steps=100)
            served.change_quota("ann", MIB // 2)
            before, began = steps_of(served, "bob"), time.perf_counter()
            assert exceeds.stdin is not None
            exceeds.stdin.write("\n")
            exceeds.stdin.flush()
            line_of(exceeds)
            took.append(time.perf_counter() - began)
            beside.append((steps_of(served, "bob") - before) / took[-1])
            served.end_clients()
    yield {
        "case": "steps beside 100 steps above the quota of another client",
        "steps/s": statistics.median(beside),
        "alone": statistics.median(alone),
        "refused in s": statistics.median(took),
        "ratio": statistics.median(a / b for a, b in zip(beside, alone, strict=True)),
        "to reach": ">= 0.95",
    }


def scrapes() -> Iterator[Row]:
    """Measures steps of four clients while the metrics and the page are read ten times a second."""
    for seconds, most in ((0.003, ">= 0.97"), (0.00033, "-")):
        with ServedIslands(2) as without, ServedIslands(2, has_metrics=True) as served:
            rates: dict[str, list[float]] = {"none": [], "scraped": []}
            for _ in range(ROUNDS):
                for name, islands in (("none", without), ("scraped", served)):
                    for n in range(4):
                        islands.start(f"client{n}", "keep", islands=[[0], [1]], seconds=seconds)
                    time.sleep(WARM_UP)
                    rates[name].append(rate_of(islands, 2.0))
                    islands.end_clients()
        yield {
            "case": f"steps of {seconds * 1e3:g} ms, four clients on two islands, 10 scrapes a second",
            "steps/s": statistics.median(rates["scraped"]),
            "without": statistics.median(rates["none"]),
            "ratio": statistics.median(a / b for a, b in zip(rates["scraped"], rates["none"], strict=True)),
            "to reach": most,
        }


def drains() -> Iterator[Row]:
    """Measures the longest step of four clients when an island is drained, and when it is lost."""
    seconds: dict[str, list[float]] = {"drained": [], "lost": []}
    for _ in range(MOVES):
        with tempfile.TemporaryDirectory() as folder, started_cluster(Path(folder)) as cluster:
            token = Path(folder, "lab", "token")
            clients = [
                subprocess.Popen(
                    [sys.executable, str(CLIENT), str(cluster.address()), str(token), f"client{n}"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for n in range(4)
            ]
            try:
                for client in clients:
                    assert client.stdout is not None
                    assert client.stdout.readline() == "ready\n"
                for case in ("drained", "lost"):
                    # The longest steps before, of the first ones, are of no interest.
                    time.sleep(WARM_UP)
                    longest_of(clients)
                    if case == "drained":
                        _cluster_tool(folder, "drain", "lab", "island0")
                    else:
                        status = json.loads(_cluster_tool(folder, "status", "lab", "--json"))
                        os.kill(status["islands"][1]["hosts"][0]["pid"], signal.SIGKILL)
                    time.sleep(RESTART_SECONDS)
                    seconds[case].append(longest_of(clients))
            finally:
                for client in clients:
                    client.kill()
                    client.communicate()
    yield {
        "case": "4 clients with 64 MB each on one island: longest step",
        "drained s": statistics.median(seconds["drained"]),
        "lost s": statistics.median(seconds["lost"]),
        "ratio": statistics.median(a / b for a, b in zip(seconds["drained"], seconds["lost"], strict=True)),
        "to reach": "<= 0.5",
    }


def longest_of(clients: list[subprocess.Popen[str]]) -> float:
    """Returns the longest step of clients since the last call."""
    longest = 0.0
    for client in clients:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write("\n")
        client.stdin.flush()
        longest = max(longest, float(client.stdout.readline()))
    return longest


def _cluster_tool(folder: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "pathways.tools.pw_cluster", *arguments]
    environment = os.environ | {"PW_CLUSTERS": folder}
    return subprocess.run(
        command, env=environment, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ).stdout


@contextlib.contextmanager
def started_cluster(folder: Path) -> Iterator[ClusterFolder]:
    """Starts a cluster of two islands of four devices."""
    file = folder / "lab.toml"
    file.write_text("[[islands]]\ncount = 2\ndevices_per_host = 4\n")
    _cluster_tool(str(folder), "up", str(file))
    try:
        os.environ["PW_CLUSTERS"] = str(folder)
        yield ClusterFolder("lab")
    finally:
        _cluster_tool(str(folder), "down", "lab")


def rate_of(served: ServedIslands, seconds: float) -> float:
    """Returns the steps of all clients in a second, while metrics are read if there are some."""

    def count() -> int:
        return sum(record.use.last for record in served.accounts())

    before, began = count(), time.perf_counter()
    while time.perf_counter() < began + seconds:
        if served.metrics_port is not None:
            for path in ("metrics", "") if (time.perf_counter() - began) % 1 < 0.1 else ("metrics",):
                with urllib.request.urlopen(f"http://127.0.0.1:{served.metrics_port}/{path}") as reply:
                    reply.read()
        time.sleep(0.1)
    return (count() - before) / (time.perf_counter() - began)


def steps_of(served: ServedIslands, name: str) -> int:
    """Returns the number of finished steps of a client."""
    return sum(record.use.steps for record in served.accounts() if record.client == name)


def main() -> None:
    parts = {
        "admission": admission,
        "priorities": priorities,
        "accounts": accounts,
        "neighbours": neighbours,
        "scrapes": scrapes,
        "drains": drains,
    }
    run_parts(parser_of(__doc__).parse_args(), parts)


if __name__ == "__main__":
    main()

"""Unmodified JAX behind `pw-proxy`, beside local JAX on as many devices.

Both sides are one process each, which runs the same work (`_proxy_work.py`); the CPU and the memory of the
server are read while it has nothing else to do. Programs of Shardy's MPMD compiler run beside `pw.from_mpmd`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from _parts import Row, parser_of, run_parts

WORK = Path(__file__).with_name("_proxy_work.py")
SERVER = (sys.executable, "-m", "pathways.tools.pw_proxy", "--cpu-devices", "8", "--listen")
LOCAL = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
MIB = 1 << 20
FLOOR_MIB = 256
ROUNDS = 9
"""Number of measurements of steps behind a server and locally, in turn."""

TRANSFERS = 8
"""Number of transfers of the client, with a warm-up."""


class Server:
    """Server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], environment: dict[str, str]) -> None:
        self.process = process
        self.environment = environment

    def usage(self) -> tuple[float, int]:
        """Returns seconds of CPU, and bytes of memory."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks, pages = int(words[11]) + int(words[12]), int(words[21])
        return ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def served() -> Iterator[Server]:
    """Yields a server, with the environment of its clients."""
    with tempfile.TemporaryDirectory(prefix="pw-bench-") as folder:
        environment = os.environ | {"PW_CACHE_DIR": folder}
        command = [*SERVER, f"unix:{folder}/jax"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline().removeprefix("export ").strip() for _ in range(3)]
            yield Server(process, dict(line.split("=", 1) for line in lines))
            process.terminate()


class Client:
    """Program that runs pieces of work one after the other; each call measures the next.

    Between the calls it is stopped: the client of the protocol polls, which takes some of a core.
    """

    def __init__(self, process: subprocess.Popen[str], server: Server | None) -> None:
        self.process = process
        self.server = server

    def __call__(self, beside: Client | None = None) -> dict[str, float]:
        """Measures the next piece of work, and its cost for the server; beside another client that polls."""
        if beside is not None:
            beside.process.send_signal(signal.SIGCONT)
        self.process.send_signal(signal.SIGCONT)
        before = self._usage()
        self._write()
        figures: dict[str, float] = json.loads(self._read())
        after = self._usage()
        self._write()
        self._read()  # It is ready for the next one, or has ended.
        for client in (self, beside):
            if client is not None:
                client.process.send_signal(signal.SIGSTOP)
        return figures | {"server_s": after[0] - before[0], "server_bytes": after[1] - before[1]}

    def _usage(self) -> tuple[float, int]:
        return (0.0, 0) if self.server is None else self.server.usage()

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def _write(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextlib.contextmanager
def client_of(environment: dict[str, str], *works: str, server: Server | None = None) -> Iterator[Client]:
    """Yields a client that has started, and waits to be measured."""
    with subprocess.Popen(
        [sys.executable, str(WORK), *works],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | environment,
    ) as process:
        client = Client(process, server)
        client._read()
        yield client
        process.send_signal(signal.SIGCONT)


def run(environment: dict[str, str], *works: str, server: Server | None = None) -> list[dict[str, float]]:
    """Returns measurements of pieces of work of one client."""
    with client_of(environment, *works, server=server) as measure:
        return [measure() for _ in works]


def both(work: str) -> tuple[dict[str, float], dict[str, float]]:
    """Returns measurements of a piece of work behind a server, and locally."""
    with served() as server:
        (ours,) = run(server.environment, work, server=server)
    (local,) = run(LOCAL, work)
    return ours, local


def chain() -> Iterator[Row]:
    ours, local = both("chain")
    case = "128 dependent calls, per call"
    yield {"case": case, "us": ours["us"], "local us": local["us"], "to reach": "<= 200"}


def execute() -> Iterator[Row]:
    with served() as server:
        _, figures = run(server.environment, "many_calls", "many_calls", server=server)
    yield {
        "case": "server, an execute of a tiny module",
        "us of CPU": figures["server_s"] / figures["calls"] * 1e6,
        "to reach": "<= 90",
    }


def growth() -> Iterator[Row]:
    with served() as server:
        # Memory kept for the first calls, and for as many as may wait at once, is no growth.
        _, figures = run(server.environment, "very_many_calls", "very_many_calls", server=server)
    yield {
        "case": "growth of the server, 100,000 calls",
        "KiB": figures["server_bytes"] / 1024,
        "bytes a call": figures["server_bytes"] / figures["calls"],
        "to reach": "0",
    }


def training() -> Iterator[Row]:
    works = ["training_step"] * (ROUNDS + 1)
    rounds: list[tuple[float, float, float]] = []
    with (
        served() as server,
        client_of(server.environment, *works) as ours,
        client_of(LOCAL, *works, *works) as local,
    ):
        for number in range(ROUNDS + 1):
            measured = ours(), local(), local(beside=ours)
            if number:  # The first round compiles.
                rounds.append((measured[0]["ms"], measured[1]["ms"], measured[2]["ms"]))
    yield {
        "case": "training step, mesh 2x4, 52 arrays",
        "ms": statistics.median(ms for ms, _, _ in rounds),
        "local ms": statistics.median(ms for _, ms, _ in rounds),
        "ratio": statistics.median(ms / of_local for ms, of_local, _ in rounds),
        "to reach": "<= 1.15",
        "ratio to local beside an idle client": statistics.median(ms / beside for ms, _, beside in rounds),
    }


def mpmd() -> Iterator[Row]:
    ours, local = both("mpmd_step")
    for case, name in (("waited for", "ms"), ("32 in flight", "ms ahead")):
        yield {
            "case": f"Shardy's MPMD, 12 launches, {case}",
            "ms": ours[name],
            "pw.from_mpmd ms": local[name],
            "ratio": ours[name] / local[name],
            "to reach": "<= 1.3",
        }


def transfers() -> Iterator[Row]:
    works = "puts", "fetches"
    with served() as server:
        ours = run(server.environment, *works, server=server)
    floor = socket_floor()
    for work, figures, local in zip(works, ours, run(LOCAL, *works), strict=True):
        yield {
            "case": f"{work.removesuffix('s').removesuffix('e')} of 64 MiB",
            "MiB/s": figures["speed"],
            "local MiB/s": local["speed"],
            "to reach": ">= 500",
            "bare socket MiB/s": floor,
            "client ms of CPU": figures["cpu_ms"],
            "server ms of CPU": figures["server_s"] / TRANSFERS * 1e3,
        }


def idle() -> Iterator[Row]:
    with served() as server:
        (figures,) = run(server.environment, "idle", server=server)
    yield {"case": "idle server", "% of a core": figures["server_s"] / figures["seconds"] * 100}


def socket_floor() -> float:
    """Returns the MiB/s of a bare socket between two threads."""
    one, other = socket.socketpair()
    block = bytes(MIB)

    def send() -> None:
        for _ in range(FLOOR_MIB):
            one.sendall(block)
        one.close()

    began = time.perf_counter()
    thread = threading.Thread(target=send)
    thread.start()
    while other.recv(MIB):
        pass
    thread.join()
    other.close()
    return FLOOR_MIB / (time.perf_counter() - began)


if __name__ == "__main__":
    run_parts(
        parser_of(__doc__).parse_args(),
        {
            "chain": chain,
            "execute": execute,
            "growth": growth,
            "training": training,
            "mpmd": mpmd,
            "transfers": transfers,
            "idle": idle,
        },
    )

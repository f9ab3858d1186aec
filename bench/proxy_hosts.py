"""Unmodified JAX on hosts, by `pw-proxy` and on a shared cluster, beside one process and `jax.distributed`.

  python bench/proxy_hosts.py [--json PATH] [--only chain]

Each side runs the same work (`_proxy_work.py`) in processes of its own, in turn; figures are medians. All
processes share the cores of this machine.
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
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from _parts import Row, parser_of, run_parts

WORK = Path(__file__).with_name("_proxy_work.py")
PYTHON = sys.executable
PROXY = (PYTHON, "-m", "pathways.tools.pw_proxy")
CLUSTER = (PYTHON, "-m", "pathways.tools.pw_cluster")
ONE_PROCESS = (*PROXY, "--cpu-devices", "8", "--")
TWO_HOSTS = (*PROXY, "--hosts", "2", "--islands", "1", "--devices-per-host", "4", "--")
FOUR_HOSTS = (*PROXY, "--hosts", "4", "--")
LOCAL = ("env", "JAX_PLATFORMS=cpu", "JAX_NUM_CPU_DEVICES=8")
TWO_ISLANDS = (*PROXY, "--hosts", "2", "--devices-per-host", "2", "--")
ROUNDS = 5
IDLE_SECONDS = 60
IDLE = "import jax; jax.devices(); print('ready', flush=True); input(), input(), input()"
"""Program that waits for one line after those that `start` writes."""

Side = Callable[[str], float]
"""Function that runs a piece of work, and returns its figure."""


def start(command: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Starts a program whose standard input has all lines that a piece of work waits for."""
    process = subprocess.Popen(
        [*command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | (environment or {}),
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write("\n\n")
    process.stdin.flush()
    return process


def figures_of(process: subprocess.Popen[str]) -> dict[str, float]:
    """Returns what a program has measured."""
    out, _ = process.communicate(timeout=300)
    (line,) = (line for line in out.splitlines() if line.startswith("{"))
    figures: dict[str, float] = json.loads(line)
    return figures


def behind(prefix: Sequence[str], figure: str) -> Side:
    """Returns the side of a program with the given words before its command."""
    return lambda work: figures_of(start([*prefix, PYTHON, str(WORK), work]))[figure]


def distributed(figure: str) -> Side:
    """Returns the side of two processes of `jax.distributed`, beside a program that idles behind a server."""

    def side(work: str) -> float:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
        environment = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4", "ADDRESS": address}
        idle = start([*ONE_PROCESS, PYTHON, "-c", IDLE])
        assert idle.stdout is not None
        idle.stdout.readline()
        command = [PYTHON, str(WORK), work]
        processes = [start(command, environment | {"RANK": str(rank)}) for rank in range(2)]
        try:
            measured = [figures_of(process)[figure] for process in processes]
        finally:
            idle.communicate("\n")
        return measured[0]

    return side


def compared(case: str, work: str, unit: str, sides: Mapping[str, Side], to_reach: str) -> Row:
    """Returns a row of two sides; the ratio is that of the first to the second."""
    rounds = [[side(work) for side in sides.values()] for _ in range(ROUNDS)]
    medians = [statistics.median(values) for values in zip(*rounds, strict=True)]
    return {
        "case": case,
        **{f"{name} {unit}": value for name, value in zip(sides, medians, strict=True)},
        "ratio": statistics.median(ours / other for ours, other in rounds),
        "to reach": to_reach,
    }


@contextlib.contextmanager
def cluster(text: str) -> Iterator[tuple[str, ...]]:
    """Starts a cluster called lab; yields the words before the command of a program on it."""
    with tempfile.TemporaryDirectory(prefix="pw-bench-") as folder:
        Path(folder, "lab.toml").write_text(text)
        os.environ["PW_CLUSTERS"] = f"{folder}/clusters"
        subprocess.run([*CLUSTER, "up", f"{folder}/lab.toml"], check=True, capture_output=True)
        try:
            yield (*CLUSTER, "run", "lab", "--")
        finally:
            subprocess.run([*CLUSTER, "down", "lab"], check=True, capture_output=True)


def chain() -> Iterator[Row]:
    one = {"one process": behind(ONE_PROCESS, "us")}
    hosts = {"hosts": behind(TWO_HOSTS, "us")}
    yield compared("128 calls on one of two hosts, per call", "chain", "us", hosts | one, "<= 1.3")
    yield compared("128 calls over two hosts, per call", "chain_over_two", "us", hosts | one, "<= 1.5")
    with cluster("[[islands]]\nhosts = 2\ndevices_per_host = 4\n") as prefix:
        service = {"service": behind(prefix, "us")}
        yield compared("the same by a service, on one host", "chain", "us", service | one, "<= 2")
        yield compared("the same by a service, over two hosts", "chain_over_two", "us", service | one, "<= 2")


def training() -> Iterator[Row]:
    for case, work, most in (
        ("training step, mesh 2x4 over two hosts, ahead", "training_ahead", "<= 1.10"),
        ("training step, mesh 2x4 over two hosts, waited for", "training_step", "<= 1.25"),
    ):
        sides = {"hosts": behind(TWO_HOSTS, "ms"), "jax.distributed": distributed("ms")}
        yield compared(case, work, "ms", sides, most)


def requests() -> Iterator[Row]:
    """Counts the messages to a worker in 70 steps of training."""
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); import _proxy_hosts_server; "
        "print(json.dumps(_proxy_hosts_server.messages()))"
    )
    out = subprocess.run(
        [PYTHON, "-c", code, str(WORK.parent)], check=True, capture_output=True, text=True
    ).stdout
    yield {
        "case": "messages to a worker, 70 steps of training",
        **json.loads(out.splitlines()[-1]),
        "to reach": "<= 260",
    }


def cpu_of(pid: int) -> float:
    """Returns the seconds of CPU of a process."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def idle() -> Iterator[Row]:
    """Measures a front and a service while a program idles."""
    command = [*CLUSTER, "status", "lab", "--json"]
    with cluster("[[islands]]\nhosts = 2\n") as prefix:
        status = subprocess.run(command, check=True, capture_output=True, text=True)
        service = json.loads(status.stdout)["pid"]
        for name, words, services in (
            ("own hosts", TWO_HOSTS, {}),
            ("a service", prefix, {"service": service}),
        ):
            with start([*words, PYTHON, "-c", IDLE]) as process:
                assert process.stdout is not None
                process.stdout.readline()
                time.sleep(2)
                pids = {"front": process.pid, **services}
                before = {of: cpu_of(pid) for of, pid in pids.items()}
                time.sleep(IDLE_SECONDS)
                used = {
                    f"{of} % of a core": (cpu_of(pid) - before[of]) / IDLE_SECONDS * 100
                    for of, pid in pids.items()
                }
                process.communicate("\n")
            yield {"case": f"idle session of {name}, a minute", **used, "to reach": "<= 1"}


def copies() -> Iterator[Row]:
    local = behind((), "ms")
    sides = {"proxied": behind(TWO_ISLANDS, "ms"), "pw program": lambda work: local(f"pw_{work}")}
    yield compared("64 MiB between islands, equal shardings", "island_copies", "ms", sides, "<= 1.2")


def programs() -> Iterator[Row]:
    """Measures programs of Pathways in a proxied process: a step of 56 launches, and chains of one launch."""
    for case, prefix, name, work, most in (
        ("one process", ONE_PROCESS, "in process", "readme_step", "<= 1.3"),
        ("4 workers", FOUR_HOSTS, "pw.connect(hosts=4)", "readme_step_on_hosts", "<= 1.2"),
    ):
        sides = {"proxied": behind(prefix, "ms"), name: lambda _, work=work: behind(LOCAL, "ms")(work)}
        yield compared(f"step of 56 launches, {case}, waited for", "readme_step", "ms", sides, most)
        thread = behind(prefix, "thread ms")
        yield {
            "case": f"step of 56 launches, {case}, CPU of the client's thread",
            "proxied ms": statistics.median(thread("readme_step") for _ in range(ROUNDS)),
            "to reach": "<= 0.1",
        }
    chain = behind(ONE_PROCESS, "us")
    sides = {"program": lambda _: chain("program_chain"), "jit": lambda _: chain("jit_chain")}
    yield compared("chain of 100 programs of one launch, per call", "chain", "us", sides, "<= 1.1")
    sides = {"proxied": chain, "in process": behind(LOCAL, "us")}
    yield compared("loop by value in chunks of one, per iteration", "loop_by_value", "us", sides, "<= 1.2")


def workers_of(front: int) -> list[int]:
    """Returns the processes of the workers that a front has started."""
    files = Path(f"/proc/{front}/task").glob("*/children")
    children = [int(child) for file in files for child in file.read_text().split()]
    return [pid for pid in children if b"worker_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def kills() -> Iterator[Row]:
    """Measures from a kill of a worker to the first step on the island that is left."""
    seconds = []
    for _ in range(ROUNDS):
        with start([*TWO_ISLANDS, PYTHON, str(WORK), "lost_island"]) as process:
            assert process.stdout is not None
            while process.stdout.readline() != "stepping\n":
                pass
            time.sleep(0.5)
            workers = workers_of(process.pid)
            killed = time.time()
            os.kill(max(workers), signal.SIGKILL)
            seconds.append(figures_of(process)["time"] - killed)
    yield {
        "case": "kill to the first step on what is left",
        "s": statistics.median(seconds),
        "max s": max(seconds),
        "to reach": "<= 3",
    }


def neighbours() -> Iterator[Row]:
    """Measures a `pw` client of an island while an unmodified program floods another one.

    The second row has the flood on hosts of its own: what it costs there is the cores that all share.
    """
    with cluster("[[islands]]\ncount = 2\n") as prefix:
        own = behind((), "us")
        floods = {
            "another island": [*prefix[:-1], "--islands", "island0", "--"],
            "hosts of its own": TWO_ISLANDS,
        }
        alone: list[float] = []
        beside: dict[str, list[float]] = {where: [] for where in floods}
        for _ in range(ROUNDS):
            alone.append(own("attached_steps"))
            for where, words in floods.items():
                with start([*words, PYTHON, str(WORK), "flood"]) as flood:
                    assert flood.stdout is not None
                    while flood.stdout.readline() != "flooding\n":
                        pass
                    beside[where].append(own("attached_steps"))
                    os.killpg(flood.pid, signal.SIGKILL)
        for where, values in beside.items():
            yield {
                "case": f"waited step of a client, while a program floods {where}",
                "us": statistics.median(values),
                "alone us": statistics.median(alone),
                "ratio": statistics.median(one / other for one, other in zip(values, alone, strict=True)),
                "to reach": "<= 1.05" if where == "another island" else "-",
            }


if __name__ == "__main__":
    run_parts(
        parser_of(__doc__).parse_args(),
        {
            "chain": chain,
            "training": training,
            "requests": requests,
            "idle": idle,
            "copies": copies,
            "programs": programs,
            "kills": kills,
            "neighbours": neighbours,
        },
    )

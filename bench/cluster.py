"""Pipelines with Ray and with workers; and the delay of a program by a lost host.

  python bench/cluster.py [--rounds 30] [--kills 50] [--minutes 10] [--json PATH]

All runs on this machine, Ray in a network of its own that has only loopback (`unshare`). Rows:

- A value goes round four hosts through 32 stages of tiny computations: our program, Ray actors that call
  each other with ObjectRefs, each with a JAX of its own, and a compiled graph of the same actors. Measured
  in turn, until the last result is there; medians. Target: four times as fast as actor calls. A compiled
  graph keeps its channels open and needs no scheduler, but each hop still wakes a Python process that
  reads, computes and writes; our hosts have issued all stages before the value comes, and a hop is a pull of
  the transfer server.
- A sum over an island of two hosts, against the same of two bare processes with `jax.distributed` and gloo.
- From the SIGKILL of a host until its result is an error, and until the next good step of the same program:
  median and most of all kills, for an island of one host and for one of two. Reported; the new worker imports
  JAX and compiles. After half of `--minutes` for each there are no more kills.
- From the SIGKILL of a host until its island is back, without and with a spare worker, in turn; medians.
  Target: a spare takes a fifth of the time, since it has imported JAX.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import logging
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

STAGES, HOSTS = 32, 4
TARGET = 4.0
SPARE_TARGET = 5.0
WARM_UP = 3

_BARE_SUM = """
import sys, time
from pathways.runtime.xla import distributed
rank, port, rounds = (int(word) for word in sys.argv[1:])
distributed.join(
    f"127.0.0.1:{port}", "127.0.0.1", rank=rank, size=2, cpu_devices=1, start_seconds=60
)
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
sharding = NamedSharding(mesh, P("x"))
x = jax.make_array_from_callback((8,), sharding, lambda index: np.arange(8, dtype=np.float32)[index])
add = jax.jit(lambda x: x + x.sum(), out_shardings=sharding)
times = []
for _ in range(rounds):
    began = time.perf_counter()
    add(x).block_until_ready()
    times.append(time.perf_counter() - began)
print(*times)
"""


def alone() -> None:
    """Restarts the bench in a network that has only loopback."""
    if "PW_BENCH_ALONE" in os.environ:
        return
    command = ["unshare", "-n", "-p", "-f", "--kill-child", "--mount-proc", "sh", "-c"]
    script = 'ip link set lo up && "$@"'
    environment = {**os.environ, "PW_BENCH_ALONE": "1"}
    done = subprocess.run([*command, script, "sh", sys.executable, *sys.argv], env=environment, check=False)
    sys.exit(done.returncode)


class Stage:
    """Actor with a JAX of its own."""

    def __init__(self) -> None:
        os.environ["JAX_PLATFORMS"] = "cpu"
        import jax

        self._stage = jax.jit(lambda x: x + 1)

    def run(self, x: Any) -> Any:
        """Runs a stage: from the object store, and into it."""
        return np.asarray(self._stage(x))


def in_turn(sides: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Returns the median seconds of each side."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds + WARM_UP):
        for name in random.sample(list(sides), len(sides)):
            began = time.perf_counter()
            sides[name]()
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(taken[WARM_UP:]) for name, taken in times.items()}


def ring(rounds: int) -> Iterator[str]:
    """Measures a value that goes round four hosts."""
    import ray
    from ray.dag import InputNode

    import pathways as pw

    ray.init(address="local", num_cpus=HOSTS, _node_ip_address="127.0.0.1", include_dashboard=False,
             log_to_driver=False, logging_level="ERROR")  # fmt: skip
    actors = [ray.remote(Stage).options(num_cpus=1).remote() for _ in range(HOSTS)]
    value = np.zeros(1, np.float32)

    def calls() -> Any:
        found: Any = value
        for n in range(STAGES):
            found = actors[n % HOSTS].run.remote(found)
        return ray.get(found)

    assert calls() == STAGES
    with InputNode() as given:
        node = given
        for n in range(STAGES):
            node = actors[n % HOSTS].run.bind(node)
    graph = node.experimental_compile()
    pw.connect(hosts=HOSTS)
    devices = pw.make_virtual_device_set()
    stages = [pw.jit(lambda x: x + 1, devices=devices.add_slice(1, "x")) for _ in range(HOSTS)]

    def chain(x: Any) -> Any:
        for n in range(STAGES):
            x = stages[n % HOSTS](x)
        return x

    program = pw.program(chain, fuse=False)
    (placed,) = program.place(value)
    assert np.asarray(program(placed)) == STAGES
    found = in_turn(
        {
            "ours": lambda: program(placed).block_until_ready(),
            "calls": calls,
            "graph": lambda: ray.get(graph.execute(value)),
        },
        rounds,
    )
    graph.teardown()
    for slice in list(devices.slices):
        pw.release(slice)
    pw.disconnect()
    ray.shutdown()
    ratio = found["calls"] / found["ours"]
    yield (
        f"ring over {HOSTS} hosts, {STAGES} stages: ours {found['ours'] * 1e3:.2f} ms, Ray actor calls "
        f"{found['calls'] * 1e3:.2f} ms ({ratio:.1f} x, target {TARGET:.0f} x: "
        f"{'met' if ratio >= TARGET else 'MISSED'}), Ray compiled graph {found['graph'] * 1e3:.2f} ms "
        f"({found['graph'] / found['ours']:.1f} x)"
    )


def sums(rounds: int) -> Iterator[str]:
    """Measures a sum over two hosts of an island."""
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    import pathways as pw
    from pathways.runtime.resources.ports import claimed_port

    pw.connect(islands=[pw.Island(hosts=2)])
    devices = pw.make_virtual_device_set()
    slice = devices.add_slice(2, "x")
    program = pw.program(
        pw.jit(lambda x: x + jnp.sum(x), devices=slice, in_shardings=P("x"), out_shardings=P("x"))
    )
    (placed,) = program.place(np.arange(8, dtype=np.float32))
    ours = in_turn({"ours": lambda: program(placed).block_until_ready()}, rounds * 5)["ours"]
    pw.release(slice)
    pw.disconnect()
    with claimed_port("127.0.0.1", None) as port:
        pass
    bare = [
        subprocess.Popen(
            [sys.executable, "-c", _BARE_SUM, str(rank), str(port), str(rounds * 5 + WARM_UP)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        for rank in range(2)
    ]
    lines = [process.communicate(timeout=120)[0].splitlines() for process in bare]
    times = [float(word) for word in lines[0][-1].split()][WARM_UP:]
    theirs = statistics.median(times)
    yield (
        f"sum over an island of two hosts: ours {ours * 1e3:.2f} ms, bare gloo {theirs * 1e3:.2f} ms "
        f"({ours / theirs:.1f} x)"
    )


def kills(count: int, minutes: float) -> Iterator[str]:
    """Measures the delay of a program by a lost host."""
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    import pathways as pw
    from pathways.runtime.clusters.connect import controller
    from pathways.runtime.control.records.errors import HostError

    for hosts in (1, 2):
        pw.connect(islands=[pw.Island(hosts=hosts), pw.Island()], options=pw.HostOptions(heartbeat=2))
        devices = pw.make_virtual_device_set()
        wide, single = (devices.add_slice(n, "x", island=f"island{k}") for k, n in enumerate((hosts, 1)))
        a = pw.jit(lambda x: x + jnp.sum(x), devices=wide, in_shardings=P("x"))
        b = pw.jit(lambda x: x * 2, devices=single)
        program = pw.program(lambda x, a=a, b=b: b(a(x)))
        value = np.arange(4, dtype=np.float32)
        np.asarray(program(value))
        error, good = [], []
        end = time.monotonic() + minutes * 30
        while len(good) < count and time.monotonic() < end:
            workers = controller()
            assert workers is not None
            os.kill(workers.hosts[hosts - 1].process.pid, signal.SIGKILL)
            began = time.perf_counter()
            try:
                while True:
                    program(value).block_until_ready()
            except HostError:
                error.append(time.perf_counter() - began)
            # An overloaded machine may lose the next one, too.
            found = None
            while found is None:
                with contextlib.suppress(HostError):
                    found = np.asarray(program(value))
            np.testing.assert_array_equal(found, 2 * (value + 6))
            good.append(time.perf_counter() - began)
        for slice in (wide, single):
            pw.release(slice)
        pw.disconnect()
        yield (
            f"{len(good)} kills of a host of an island of {hosts}: until the error median "
            f"{statistics.median(error) * 1e3:.0f} ms, most {max(error) * 1e3:.0f} ms; until the next good "
            f"step median {statistics.median(good):.2f} s, most {max(good):.2f} s"
        )


def restarts(rounds: int) -> Iterator[str]:
    """Compares the restart of an island with and without a spare worker."""
    import pathways as pw
    from pathways.runtime.clusters.connect import controller

    times: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(rounds):
        for spares, seconds in times.items():
            pw.connect(hosts=2, options=pw.HostOptions(spares=spares))
            workers = controller()
            assert workers is not None
            while spares and pw.status().spares.ready < spares:
                time.sleep(0.05)
            os.kill(workers.hosts[1].process.pid, signal.SIGKILL)
            began = time.perf_counter()
            for is_back in (False, True):
                while workers.is_whole() != is_back:
                    time.sleep(0.001)
            seconds.append(time.perf_counter() - began)
            pw.disconnect()
    new, spare = (statistics.median(seconds) for seconds in times.values())
    yield (
        f"{rounds} kills of a host: its island is back after {new:.2f} s (median) with a new worker, after "
        f"{spare:.3f} s with a spare one ({new / spare:.0f} x sooner, target {SPARE_TARGET:.0f})"
        f"{'  over' if new < SPARE_TARGET * spare else ''}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long hosts are killed at most")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    alone()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    logging.getLogger("pathways").setLevel(logging.CRITICAL)
    # Nothing here may hang; if it does, the traceback says where.
    faulthandler.dump_traceback_later((options.minutes + 10) * 60, exit=True)
    lines = []
    for rows in (
        ring(options.rounds),
        sums(options.rounds),
        kills(options.kills, options.minutes),
        restarts(7),
    ):
        for line in rows:
            print(line, flush=True)
            lines.append(line)
    if options.json is not None:
        options.json.write_text(json.dumps(lines, indent=1) + "\n")
    return 1 if any("MISSED" in line for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())

"""What it costs to run a program on several hosts, against the same by hand.

  python bench/hosts.py [--json PATH] [--rounds N] [--only TEXT]

Hosts are processes on this machine, on loopback. The other side of a row are bare processes
(`_bare_hosts.py`) that know in advance what to do, without programs. Both sides run in turn; a row gives
medians in microseconds and the median of the ratios of several batches.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy as np
from _bare_hosts import bare

import pathways
from pathways.runtime.hosts.connect import controller
from pathways.runtime.hosts.controller import HostPart

BATCHES = 5

Row = dict[str, Any]


def in_turn(ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """The medians of both sides, of the batch whose ratio is the median."""
    batches = []
    for _ in range(BATCHES):
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds):
            for side, work in zip(times, (ours, theirs), strict=True):
                side.append(seconds(work))
        batches.append((statistics.median(times[0]), statistics.median(times[1])))
    return sorted(batches, key=lambda pair: pair[0] / pair[1])[BATCHES // 2]


def seconds(work: Callable[[], Any]) -> float:
    """What a piece of work takes; a float that it returns is what it says that it took."""
    began = time.perf_counter()
    said = work()
    return said if isinstance(said, float) else time.perf_counter() - began


def row(case: str, versus: str, pair: tuple[float, float | None], target: str = "", note: str = "") -> Row:
    """A row of the table."""
    ours, theirs = pair
    ratio = None if theirs is None else ours / theirs
    return {
        "case": case,
        "versus": versus,
        "ours us": ours * 1e6,
        "theirs us": None if theirs is None else theirs * 1e6,
        "ratio": ratio,
        "target": target,
        "note": note,
    }


def on_hosts(count: int, **settings: Any) -> Callable[[Callable[..., Any], int], Callable[..., Any]]:
    """Starts workers; returns what puts a function on one of them."""
    pathways.connect(hosts=count, **settings)
    made = pathways.make_virtual_device_set()
    slices = [made.add_slice(1, "x", island=f"island{n}") for n in range(count)]
    place.slices = slices  # type: ignore[attr-defined]
    return place


def place(fun: Callable[..., Any], host: int) -> Callable[..., Any]:
    """A function on a host."""
    return pathways.jit(fun, devices=place.slices[host])  # type: ignore[attr-defined]


def leave() -> None:
    """Gives back what `on_hosts` made."""
    for virtual in place.slices:  # type: ignore[attr-defined]
        pathways.release(virtual)


def tiny(x: jax.Array) -> jax.Array:
    """A computation that takes XLA no time."""
    return x + 1


def ring(rounds: int) -> Iterator[Row]:
    """A value goes round four hosts through 32 stages of tiny computations."""
    put = on_hosts(4)
    stages = [put(tiny, n % 4) for n in range(32)]

    def around(x: jax.Array) -> jax.Array:
        for stage in stages:
            x = stage(x)
        return x

    program = pathways.program(around)
    x = program.place(np.float32([0]))[0]
    program(x).block_until_ready()
    runs = iter(range(1, 1 << 30))
    with bare(4) as processes:
        processes.ring(0, 31)
        pair = in_turn(lambda: program(x).block_until_ready(), lambda: processes.ring(next(runs), 31), rounds)
    per_hop = f"{pair[0] / 31 * 1e6:.0f} and {pair[1] / 31 * 1e6:.0f} us a hop"
    yield row("ring over 4 hosts, 32 tiny stages", "bare transfer server", pair, "1.50", per_hop)
    leave()


def idle(count: int, rounds: int) -> Iterator[Row]:
    """A step without work, until all hosts say that they have issued it."""
    on_hosts(count)
    workers = controller()
    assert workers is not None
    none: dict[int, tuple[Any, ...]] = dict.fromkeys(range(count), ())
    parts = {n: HostPart(empty_part(n), (), (), (), (), {}, {}) for n in range(count)}
    program = workers.load("idle", parts, {}, 0)

    def step() -> None:
        workers.wait(workers.run(program, none))

    with bare(count) as processes:
        for _ in range(100):
            step()
            processes.fan_out()
        yield row(
            f"a step with no work, {count} hosts",
            "fan-out over sockets",
            in_turn(step, processes.fan_out, rounds * 20),
            "1.50",
        )
    leave()


def empty_part(host: int) -> bytes:
    """The part of a host that has nothing to do."""
    return f"""module attributes {{pw.form = "host"}} {{
      func.func public @host_{host}() attributes {{pw.host = {host} : i64}} {{ return }}
    }}""".encode()


def ahead(rounds: int) -> Iterator[Row]:
    """Steps per second of a chain over two hosts, by how many steps may be ahead."""
    for steps in (1, 2, 4, 8):
        put = on_hosts(2, ahead=steps)
        stages = [put(tiny, n % 2) for n in range(128)]

        def chain(x: jax.Array, stages: list[Any] = stages) -> jax.Array:
            for stage in stages:
                x = stage(x)
            return x

        program = pathways.program(chain)
        x = program.place(np.float32([0]))[0]
        first = min(seconds(lambda p=program, v=x: float(p(v)[0])) for _ in range(3))

        def several(program: Any = program, x: Any = x) -> None:
            for _ in range(8):
                result = program(x)
            result.block_until_ready()

        took = statistics.median(seconds(several) for _ in range(rounds)) / 8
        note = f"{1 / took:.0f} steps/s, first result {first * 1e3:.1f} ms"
        yield row(f"chain of 128 over 2 hosts, {steps} ahead", "-", (took, None), "", note)
        leave()


def moves(rounds: int) -> Iterator[Row]:
    """Large arrays between two hosts, and small ones meanwhile."""
    large, huge = 64 << 20, 256 << 20
    put = on_hosts(2)
    take = put(lambda x: x, 1)
    source = put(lambda x: x + 1, 0)
    program = pathways.program(lambda x: take(source(x)))
    keep = pathways.program(lambda x: source(x))
    x = keep(np.zeros(large // 4, np.float32))
    move = pathways.program(lambda v: take(v))
    ask = pathways.program(lambda v: v)
    del program, ask
    yield from ()
    small = keep(np.zeros(16, np.float32))
    big = keep(np.zeros(huge // 4, np.float32))
    del move, small, big, x
    leave()


def main() -> None:
    """Prints the table, and writes it as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--rounds", type=int, default=20, help="calls of each side in each of five batches")
    parser.add_argument("--only", default="", help="only groups with this text in their names")
    options = parser.parse_args()
    groups: dict[str, Callable[[int], Iterator[Row]]] = {
        "ring": ring,
        "idle-2": lambda rounds: idle(2, rounds),
        "idle-4": lambda rounds: idle(4, rounds),
        "idle-8": lambda rounds: idle(8, rounds),
        "ahead": ahead,
    }
    print(f"command: {' '.join(['python', *sys.argv])}")
    print(f"python {platform.python_version()}, jax {jax.__version__}, jaxlib {jaxlib.__version__}")
    print(f"{'case':<42}{'versus':<24}{'target':>7}{'ratio':>7}{'ours us':>11}{'theirs us':>11}  note")
    rows = []
    for name, group in groups.items():
        if options.only not in name:
            continue
        for found in group(options.rounds):
            rows.append(found)
            ratio = "" if found["ratio"] is None else f"{found['ratio']:.2f}"
            theirs = "" if found["theirs us"] is None else f"{found['theirs us']:.1f}"
            print(
                f"{found['case']:<42}{found['versus']:<24}{found['target']:>7}{ratio:>7}"
                f"{found['ours us']:>11.1f}{theirs:>11}  {found['note']}",
                flush=True,
            )
    if options.json:
        document = {"jax": jax.__version__, "command": sys.argv, "rows": rows}
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    sys.stdout.flush()
    os._exit(0) if False else None


if __name__ == "__main__":
    main()

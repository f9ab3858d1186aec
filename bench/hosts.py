"""Cost of running a program on count hosts, against the same by hand.

  python bench/hosts.py [--json PATH] [--rounds N] [--only TEXT]

Hosts are processes on this machine, on loopback. The other side of a row are bare processes
(`_bare_hosts.py`) that know their work in advance, without programs. Both sides are measured here, from the
first message to the last reply, in turn and in random order; a row gives medians in microseconds, of the
batch whose ratio is the median of five batches. Rows without a target only report.

The last rows are the paper's Figure 6: the smallest computation that hides all control. One of the hosts
computes for some time in each step, on one core; the others have a computation that takes no time. All
control is hidden when steps, some of them in flight, take at most 1 / 0.95 of the computation alone. Hosts
share this machine's cores, so a row has the work of the controller and of all workers on the cores that are
left.

`bench/paper.py` simulates the same for hundreds of hosts.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import _costs
import jax
import jax.numpy as jnp
import numpy as np
from _bare_hosts import bare
from _cores import cpu_seconds
from _idle import load_idle
from _parts import print_header
from pipeline import Size, another_process, layer, loss_of_layer, step_of

import pathways
from pathways.runtime.clusters.connect import controller
from pathways.runtime.hosts.client.host_session import HostSession

BATCHES = 5
WARM_UP = 5
HIDDEN = 0.95
"""The fraction of a step's time in its computation when all control is hidden."""

STAGES = 32
CHAIN = 128
UNDER_WAY = 4
MLP = Size(stages=2, microbatches=8, width=512, rows=256)

Side = Callable[[], float]
"""Function that runs something once, and returns its seconds."""


@dataclasses.dataclass(frozen=True)
class Row:
    """Row of the table.

    Attributes:
      case: its subject.
      versus: the other side.
      ours: our seconds.
      theirs: seconds of the other side; None without one.
      target: the largest ratio of both; None if it is only reported.
      note: a remark.
      cost: the cost of a simulated cluster that our side is; empty for none.
    """

    case: str
    versus: str
    ours: float
    theirs: float | None = None
    target: float | None = None
    note: str = ""
    cost: str = ""

    @property
    def ratio(self) -> float | None:
        """The ratio of ours to theirs."""
        return None if self.theirs is None else self.ours / self.theirs

    def __str__(self) -> str:
        target = "report" if self.target is None else f"{self.target:.2f}"
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        theirs = "" if self.theirs is None else f"{self.theirs * 1e6:.1f}"
        over = self.target is not None and self.ratio is not None and self.ratio > self.target
        return (
            f"{self.case:<42}{self.versus:<24}{target:>7}{ratio:>7}{self.ours * 1e6:>11.1f}{theirs:>11}  "
            f"{'over; ' if over else ''}{self.note}"
        ).rstrip()


class Hosts:
    """Workers, with a slice on each of them as long as the context is entered.

    Args:
      count: their number.
      **settings: more arguments of `pathways.connect`.
    """

    def __init__(self, count: int, **settings: Any) -> None:
        pathways.connect(hosts=count, **settings)
        devices = pathways.make_virtual_device_set()
        self.slices = [devices.add_slice(1, "x", island=f"island{n}") for n in range(count)]

    def __enter__(self) -> Hosts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for virtual in self.slices:
            pathways.release(virtual)

    def jit(self, fun: Callable[..., Any], host: int) -> Callable[..., Any]:
        """Places a function on a host."""
        return pathways.jit(fun, devices=self.slices[host])

    def chain(self, length: int, over: int) -> Side:
        """Returns a run of a value through stages that take no time, on some hosts in turn."""
        stages = [self.jit(tiny, n % over) for n in range(length)]

        def chain(x: jax.Array) -> jax.Array:
            for stage in stages:
                x = stage(x)
            return x

        program = pathways.program(chain, fuse=False)
        (x,) = program.place(np.float32([0]))
        return lambda: program(x)


class Idle:
    """Steps without work of all hosts: their host programs are empty.

    Args:
      count: the number of hosts.
    """

    def __init__(self, count: int) -> None:
        found = controller()
        assert found is not None
        self.controller: HostSession = found
        self.program = load_idle(self.controller, count)
        self.arguments: Mapping[int, tuple[int, ...]] = dict.fromkeys(range(count), ())

    def step(self) -> None:
        """Runs a step, until all hosts have reported that they issued it."""
        self.controller.wait_for_step(self.controller.run(self.program, self.arguments))

    def steps(self, count: int) -> None:
        """Runs steps, as far ahead as possible."""
        for _ in range(count - 1):
            self.controller.run(self.program, self.arguments)
        self.step()


def tiny(x: jax.Array) -> jax.Array:
    """Computes for no time."""
    return x + 1


def clocked(work: Callable[[], Any]) -> Side:
    """Returns a function that measures a piece of work until its results are ready."""

    def side() -> float:
        began = time.perf_counter()
        jax.block_until_ready(work())
        return time.perf_counter() - began

    return side


def in_turn(ours: Side, theirs: Side, rounds: int) -> tuple[float, float]:
    """Returns the medians of both sides, of the batch whose ratio is the median."""
    sides = (ours, theirs)
    batches = []
    for batch in range(BATCHES):
        times: tuple[list[float], list[float]] = ([], [])
        for number in range(rounds if batch else rounds + WARM_UP):
            for side in random.sample((0, 1), 2):
                took = sides[side]()
                if batch or number >= WARM_UP:
                    times[side].append(took)
        batches.append((statistics.median(times[0]), statistics.median(times[1])))
    return sorted(batches, key=lambda pair: pair[0] / pair[1])[BATCHES // 2]


def typical(side: Side, rounds: int) -> float:
    """Returns the median of one side alone."""
    return statistics.median([side() for _ in range(rounds + WARM_UP)][WARM_UP:])


def ring(rounds: int) -> Iterator[Row]:
    """Measures a value that goes round four hosts through 32 stages of tiny computations; then the terms of a
    hop."""
    hops = STAGES - 1
    with Hosts(4) as hosts:
        around, alone, single = (
            clocked(hosts.chain(length, over)) for length, over in ((STAGES, 4), (STAGES, 1), (1, 1))
        )
        with bare(4) as processes:
            ours, theirs = in_turn(around, clocked(lambda: processes.ring(hops)), rounds)
        step = typical(single, rounds * BATCHES)
        launch = (typical(alone, rounds * BATCHES) - step) / hops
    rest = (ours - theirs - step) / hops - launch
    note = (
        f"{ours / hops * 1e6:.0f} us a hop: pull {theirs / hops * 1e6:.0f}, launch {launch * 1e6:.0f}, "
        f"call and answer {step / hops * 1e6:.0f} (once: {step * 1e6:.0f}), "
        f"rest {rest * 1e6:.0f}, where threads wait to be woken"
    )
    yield Row(f"ring over 4 hosts, {STAGES} tiny stages", "bare transfer server", ours, theirs, 1.5, note)


def idle(rounds: int) -> Iterator[Row]:
    """Measures a step without work, until all hosts have reported that they issued it."""
    for count in (2, 4, 8):
        with Hosts(count), bare(count) as processes:
            pair = in_turn(clocked(Idle(count).step), clocked(processes.fan_out), rounds * 20)
        yield Row(f"a step with no work, {count} hosts, p50", "fan-out over sockets", *pair, 1.5)


def ahead(rounds: int) -> Iterator[Row]:
    """Measures the steps per second of a chain, by the number of steps ahead, and the time to the first
    result."""
    count = 16
    for steps in (1, 2, 4, 8):
        with Hosts(2, options=pathways.HostOptions(ahead=steps)) as hosts:
            chain = hosts.chain(CHAIN, 2)
            first = typical(clocked(lambda chain=chain: float(chain()[0])), rounds)
            took = typical(
                clocked(lambda chain=chain: [chain() for _ in range(count)][-1]), max(rounds // 4, 1)
            )
        note = f"{count / took:.1f} steps/s; first result after {first * 1e3:.1f} ms"
        yield Row(f"chain of {CHAIN} over 2 hosts, {steps} ahead", "", took / count, note=note)


def touch(x: jax.Array) -> jax.Array:
    """Returns an array that is computed at once from one that is donated."""
    return x.at[0].add(1)


def moves(rounds: int) -> Iterator[Row]:
    """Measures a large array from one host to the other, and a small one during a large one."""
    small, large, huge = 64, 64 << 20, 256 << 20
    with Hosts(2) as hosts, bare(2) as processes:
        here = hosts.jit(touch, 0)
        # Of an array that is donated, such as a received one, it is no copy.
        there = hosts.jit(lambda x: x, 1)
        make = {
            size: pathways.program(hosts.jit(lambda x, size=size: jnp.full(size // 4, x), 0))
            for size in (small, large, huge)
        }
        move = pathways.program(lambda x: there(here(x)), donate_argnums=0)

        @pathways.program(donate_argnums=(0, 1), fuse=False)
        def both(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
            # `x` leaves before `y`, and the other host does not delay it by its work on `y`.
            x, y = here(x), here(y)
            y = there(y)
            return there(x), y

        def ours() -> float:
            x = make[large](np.float32(1)).block_until_ready()
            return clocked(lambda: move(x))()

        pair = in_turn(ours, clocked(lambda: processes.move(large)), max(rounds // 2, 1))
        speeds = [large / seconds / 1e9 for seconds in pair]
        note = f"{speeds[0]:.2f} and {speeds[1]:.2f} GB/s"
        yield Row("64 MB between hosts", "bare transfer server", *pair, 1.05, note)

        def ours_behind() -> float:
            x, y = (make[size](np.float32(1)).block_until_ready() for size in (huge, small))
            began = time.perf_counter()
            x, y = both(x, y)
            np.asarray(y)
            took = time.perf_counter() - began
            x.block_until_ready()
            return took

        def theirs_behind() -> float:
            took = clocked(lambda: processes.behind(huge, small))()
            processes.passed()
            return took

        behind = in_turn(ours_behind, theirs_behind, max(rounds // 4, 1))
        note = f"4 x 64 MB alone: {pair[0] * 4e6:.0f} and {pair[1] * 4e6:.0f} us"
        yield Row("64 bytes while 256 MB pass", "bare transfer server", *behind, note=note)


class Mlp:
    """Training of a pipelined MLP, with a layer on each slice.

    Args:
      slices: a slice for each stage.
    """

    def __init__(self, slices: list[pathways.VirtualSlice]) -> None:
        layers = [pathways.jit(layer, devices=slice) for slice in slices[:-1]]
        layers.append(pathways.jit(loss_of_layer, devices=slices[-1]))
        self.program = pathways.program(step_of(layers, MLP.microbatches), schedule="1f1b", donate_argnums=0)
        self.weights, self.batch = self.program.place(MLP.weights(), MLP.batch())
        self.loss: Any = None

    def steps(self) -> float:
        """Returns the seconds of a step when some are in flight."""
        began = time.perf_counter()
        for _ in range(UNDER_WAY):
            self.loss, self.weights = self.program(self.weights, self.batch)
        jax.block_until_ready((self.loss, self.weights))
        return (time.perf_counter() - began) / UNDER_WAY


class OneProcess:
    """`Mlp` in a process of its own, with devices for all slices."""

    mlp: Mlp

    @classmethod
    def start(cls) -> None:
        pathways.connect(cpu_devices=MLP.stages)
        devices = pathways.make_virtual_device_set()
        cls.mlp = Mlp([devices.add_slice(1, "x") for _ in range(MLP.stages)])

    @classmethod
    def steps(cls) -> tuple[float, float]:
        """Returns the seconds of a step, and the last loss."""
        return cls.mlp.steps(), float(cls.mlp.loss)


def mlp(rounds: int) -> Iterator[Row]:
    """Compares a pipelined MLP over two hosts with one process.

    Both compute the same. Values between the stages are copied within the process, and go through two sockets
    between hosts: that shows in the CPU time. Hosts issue their steps at the same time, each with a pool of
    threads of its own: so more cores may be busy.
    """
    with Hosts(MLP.stages) as hosts, another_process(OneProcess.start) as alone:
        ours = Mlp(hosts.slices)
        processes = {
            "ours": [os.getpid(), *(host.pid for host in pathways.status().hosts)],
            "theirs": [alone.submit(os.getpid).result()],
        }
        ours.steps()
        np.testing.assert_allclose(float(ours.loss), alone.submit(OneProcess.steps).result()[1])
        used = dict.fromkeys(processes, 0.0)
        counted = dict.fromkeys(processes, 0)

        def counting(name: str, side: Side) -> Side:
            def counted_side() -> float:
                before = cpu_seconds(processes[name])
                took = side()
                used[name] += cpu_seconds(processes[name]) - before
                counted[name] += UNDER_WAY
                return took

            return counted_side

        pair = in_turn(
            counting("ours", ours.steps),
            counting("theirs", lambda: alone.submit(OneProcess.steps).result()[0]),
            max(rounds // 4, 1),
        )
        cost = ours.program.lower(ours.weights, ours.batch).compile().cost_analysis()
    cores = {name: used[name] / counted[name] * 1e3 for name in processes}
    note = (
        f"{cost['transfers']} transfers, {cost['bytes transferred'] / 1e6:.1f} MB a step; "
        f"{cores['ours']:.0f} and {cores['theirs']:.0f} ms of cores a step"
    )
    yield Row(f"MLP, {MLP}, 2 hosts", "in one process", *pair, note=note)


def spin(count: jax.Array) -> jax.Array:
    """Computes on one core for a time in proportion to a number."""
    return jax.lax.fori_loop(0, count, lambda _, x: x @ x, jnp.eye(16))[0, 0]


class Spinning:
    """Steps in which one host computes for some time, and the others for none.

    Args:
      hosts: the hosts.
    """

    def __init__(self, hosts: Hosts) -> None:
        first, *idle_hosts = (hosts.jit(spin, n) for n in range(len(hosts.slices)))
        self.program = pathways.program(lambda long, short: (first(long), [f(short) for f in idle_hosts]))
        self.short = self.program.place(np.int32(1), np.int32(1))[1]

    def seconds(self, count: int, steps: int = 1) -> float:
        """Returns the time of some steps, each with a computation of `count` rounds."""
        long = self.program.place(np.int32(count), np.int32(1))[0]
        jax.block_until_ready(self.program(long, self.short))
        began = time.perf_counter()
        for _ in range(steps):
            results = self.program(long, self.short)
        jax.block_until_ready(results)
        return time.perf_counter() - began

    def smallest(self) -> float:
        """Returns the seconds of the shortest computation that hides all else."""
        count = 64
        while True:  # The hidden control does not grow.
            # A single step with all the work hides nothing.
            steps = max(round(0.1 / self.seconds(count)), 10)
            pairs = [(self.seconds(count * steps), self.seconds(count, steps)) for _ in range(BATCHES)]
            if statistics.median(alone / ours for alone, ours in pairs) >= HIDDEN:
                return statistics.median(alone for alone, _ in pairs) / steps
            count = count * 5 // 4


@dataclasses.dataclass(frozen=True)
class IdleSteps:
    """Cost of steps without work, some of them in flight.

    Attributes:
      controller: seconds of CPU of the controller for a step.
      worker: those of a host.
      rate: steps per second.
    """

    controller: float
    worker: float
    rate: float


def idle_steps(count: int, steps: int) -> IdleSteps:
    """Measures steps without work of some hosts that are connected."""
    idle = Idle(count)
    idle.steps(100)
    workers = [host.pid for host in pathways.status().hosts]
    began, before, theirs = time.perf_counter(), time.process_time(), cpu_seconds(workers)
    idle.steps(steps)
    used, took = time.process_time() - before, time.perf_counter() - began
    return IdleSteps(used / steps, (cpu_seconds(workers) - theirs) / steps / count, steps / took)


def control(rounds: int) -> Iterator[Row]:
    """Measures the costs of control that a simulated cluster has."""
    counts = (1, 2, 4, 8)
    found = []
    for count in counts:
        with Hosts(count):
            found.append(idle_steps(count, rounds * 500))
    each = statistics.linear_regression(counts, [steps.controller for steps in found]).slope
    note = f"CPU, fitted to steps without work of {', '.join(map(str, counts))} hosts"
    yield Row("controller, a host and step", "", each, note=note)
    note = "the rest of the CPU of a step without work of one host"
    yield Row("controller, once a step", "", max(found[0].controller - each, 0.0), note=note, cost="per_step")
    worker = statistics.median(steps.worker for steps in found)
    note = "CPU of a worker for a step without work"
    yield Row("worker, a step", "", worker, note=note, cost="per_worker")


def hidden(rounds: int) -> Iterator[Row]:
    """Measures the smallest computation that hides all control."""
    for count in (2, 4, 8):
        with Hosts(count) as hosts:
            shortest = Spinning(hosts).smallest()
            idle = idle_steps(count, rounds * 50)
        note = (
            f"controller: {idle.controller * 1e6:.0f} us of CPU a step without work, {idle.rate:.0f} steps/s"
        )
        yield Row(f"smallest computation hidden, {count} hosts", "", shortest, note=note)


GROUPS: dict[str, Callable[[int], Iterator[Row]]] = {
    "ring": ring,
    "idle": idle,
    "ahead": ahead,
    "moves": moves,
    "mlp": mlp,
    "control": control,
    "hidden": hidden,
}


def main() -> None:
    """Prints the table, and writes it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=_costs.costs_file, help=_costs.HELP)
    parser.add_argument("--rounds", type=int, default=20, help="calls of each side in each of five batches")
    parser.add_argument(
        "--only", default="", help=f"only groups with this text in their names: {', '.join(GROUPS)}"
    )
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print_header()
    print(f"{'case':<42}{'versus':<24}{'target':>7}{'ratio':>7}{'ours us':>11}{'theirs us':>11}  note")
    groups = {}
    for name, group in GROUPS.items():
        if options.only not in name:
            continue
        rows = []
        for row in group(options.rounds):
            rows.append(row)
            print(row, flush=True)
        cases = [{**dataclasses.asdict(row), "ratio": row.ratio} for row in rows]
        costs = [_costs.Cost(row.cost, row.ours, f"{row.case}: {row.note}") for row in rows if row.cost]
        groups[name] = _costs.Group(cases, costs)
    if options.json:
        _costs.write(options.json, groups, load)


if __name__ == "__main__":
    main()

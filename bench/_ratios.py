"""Ratios of two ways to do one thing, measured in turn within one run."""

from __future__ import annotations

import dataclasses
import random
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
from _parts import parser_of, print_header, write_json

from pathways.runtime.local.devices import connect

BATCHES = 5
# Python specialises the bytecode of a function in its first calls.
WARM_UP = 10

Side = Callable[[], Any]
Pair = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Case:
    """Two ways to do one thing.

    Attributes:
      name: the name of the work.
      versus: the name of the other side.
      target: the largest ratio of ours to theirs, until the call returns and until results are ready; None
        if the ratio is only reported.
      ours: our side.
      theirs: the other side.
      prepare: runs before each call of either side, outside of the timed interval.
      limit: the bound of our side, if the bench gives one.
      rounds: a multiple of the rounds of other cases, for one that is short and varies.
    """

    name: str
    versus: str
    target: float | None
    ours: Side
    theirs: Side
    prepare: Callable[[], None] = lambda: None
    limit: str = ""
    is_return_timed: bool = True
    rounds: int = 1


@dataclasses.dataclass(frozen=True)
class Measured:
    """Microseconds until our call and theirs return, and until their results are ready."""

    case: str
    versus: str
    target: float | None
    limit: str
    is_return_timed: bool
    returned: Pair
    ready: Pair


def run(
    description: str, cases: Callable[[], Iterable[Case]], cpu_devices: int, rounds: int
) -> list[Measured]:
    """Parses the command line, measures the cases, prints the table, and writes it as JSON where asked."""
    parser = parser_of(description)
    parser.add_argument(
        "--rounds", type=int, default=rounds, help="calls of each side in each of five batches"
    )
    options = parser.parse_args()
    connect(cpu_devices=cpu_devices)
    found = [measure(case, options.rounds) for case in cases() if options.only in case.name]
    report(found)
    write_json(options.json, map(dataclasses.asdict, found))
    return found


def measure(case: Case, rounds: int) -> Measured:
    """Returns medians over five batches; both sides run `rounds` times in each, in random order.

    A case may request a multiple of these rounds.
    """
    batches = [_batch(case, case.rounds * rounds) for _ in range(BATCHES)]
    returned, ready = (_middle(pairs) for pairs in zip(*batches, strict=True))
    return Measured(case.name, case.versus, case.target, case.limit, case.is_return_timed, returned, ready)


def _batch(case: Case, rounds: int) -> tuple[Pair, Pair]:
    """Returns medians in microseconds until our and their calls return, and until their results are ready."""
    sides = (case.ours, case.theirs)
    returned: tuple[list[float], list[float]] = ([], [])
    ready: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + WARM_UP):
        for side in random.sample((0, 1), 2):
            case.prepare()
            began = time.perf_counter()
            results = sides[side]()
            after = time.perf_counter()
            jax.block_until_ready(results)
            end = time.perf_counter()
            if number >= WARM_UP:
                returned[side].append((after - began) * 1e6)
                ready[side].append((end - began) * 1e6)
            del results
    return _medians(returned), _medians(ready)


def _medians(times: tuple[list[float], list[float]]) -> Pair:
    return statistics.median(times[0]), statistics.median(times[1])


def _middle(pairs: tuple[Pair, ...]) -> Pair:
    """Returns the pair whose ratio is the median of all ratios."""
    return sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]


def report(found: list[Measured]) -> None:
    """Prints the table; microseconds are until results are ready."""
    print_header()
    print(f"{'case':<40}{'versus':<28}{'target':>7}{'return':>8}{'ready':>8}{'ours us':>10}{'theirs us':>11}")
    for row in found:
        ratio, ready = (pair[0] / pair[1] for pair in (row.returned, row.ready))
        worst = max(ratio, ready) if row.is_return_timed else ready
        target = "" if row.target is None else f"{row.target:.2f}"
        print(
            f"{row.case:<40}{row.versus:<28}{target:>7}{ratio:>8.2f}{ready:>8.2f}"
            f"{row.ready[0]:>10.1f}{row.ready[1]:>11.1f}"
            f"{'  over' if row.target is not None and worst > row.target else ''}"
        )

"""Latency and bandwidth of the network between islands, as programs measure it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pathways.compiler.api import jit, program
from pathways.runtime.local.devices import cluster, release
from pathways.runtime.resources.tables import size, table
from pathways.runtime.resources.virtual import VirtualSlice, make_virtual_device_set
from pathways.runtime.xla.tracebacks import boundary

_HOPS = 8
_TRIES = 5
_BYTES = 8 << 20

_ENOUGH_SECONDS = 0.5
"""Time after which nothing is measured again; the first run, which compiles, does not count."""


@dataclasses.dataclass(frozen=True)
class IslandLink:
    """Network between two islands.

    Attributes:
      latency: seconds from the end of a computation on one island to the begin of one on the other that reads
        its small result.
      bandwidth: bytes per second of a large array.
    """

    latency: float
    bandwidth: float


@dataclasses.dataclass(frozen=True)
class Links:
    """Network between all islands of a cluster. `str` gives the options of policies that use times:

        links = pw.measure_links()
        step = pw.program(train, schedule=f"search(times=times.json, {links})")

    Attributes:
      pairs: the network between each two islands, by their names.
    """

    __module__ = "pathways"

    pairs: Mapping[tuple[str, str], IslandLink]

    @property
    def latency(self) -> float:
        """The longest latency, in seconds; policies assume one for all links."""
        return max((link.latency for link in self.pairs.values()), default=0.0)

    @property
    def bandwidth(self) -> float:
        """The lowest bandwidth, in bytes a second."""
        return min((link.bandwidth for link in self.pairs.values()), default=float("inf"))

    def __str__(self) -> str:
        if not self.pairs:
            return "latency=0us"
        return f"latency={self.latency * 1e6:.0f}us, bandwidth={self.bandwidth / 1e6:.3g}MB/s"

    def table(self) -> str:
        """Returns a table with a line for each pair."""
        rows = [
            (*names, f"{link.latency * 1e3:.3g} ms", f"{size(int(link.bandwidth))}/s")
            for names, link in self.pairs.items()
        ]
        return table([("island", "island", "latency", "bandwidth"), *rows])


@boundary
def measure_links() -> Links:
    """Measures the network between each two islands, one pair after the other.

    Four small programs are compiled for each pair, and an array of 8 MiB is sent two to five times. This
    takes a few seconds for a pair, and more where links are slow.

    Programs that run at the same time slow it down. The islands of one process have links, too.

    Raises:
      HostError: a host was lost.
      ResourceError: JAX has no devices here.
    """
    names = [island.name for island in cluster().islands]
    pairs = {pair: _measure(*pair) for pair in itertools.combinations(names, 2)}
    return Links(pairs)


def _measure(source: str, target: str) -> IslandLink:
    with _slices(source, target) as slices:
        home, away = (jit(_increment, devices=slice) for slice in slices)
        alone = _seconds(_chain([home]), np.zeros(1, np.float32))
        around = _seconds(_chain([home, *[away, home] * (_HOPS // 2)]), np.zeros(1, np.float32))
        # Dispatch of a call and the wait for its result are in both times, and cancel out.
        latency = max(0.0, around - alone) / _HOPS
        large = _chain([home])(np.zeros(_BYTES // 4, np.float32))
        # A new array for each call: the runtime caches copies of arguments where they were sent.
        moved = _seconds(_chain([home, away]), jax.block_until_ready(large))
        return IslandLink(latency, _BYTES / max(moved - alone - latency, 1e-6))


def _increment(x: Any) -> Any:
    return x + 1


def _chain(stages: Sequence[Any]) -> Any:
    def chain(x: Any) -> Any:
        for stage in stages:
            x = stage(x)
        return x

    return program(chain, fuse=False)


def _seconds(work: Any, argument: Any) -> float:
    """Returns the shortest time from a call to its result, after warm-up runs."""
    took: list[float] = []
    while len(took) < _TRIES and (len(took) < 2 or sum(took[1:]) < _ENOUGH_SECONDS):
        began = time.perf_counter()
        jax.block_until_ready(work(argument))
        took.append(time.perf_counter() - began)
    return min(took)


@contextlib.contextmanager
def _slices(*islands: str) -> Iterator[list[VirtualSlice]]:
    devices = make_virtual_device_set()
    slices = [devices.add_slice((1,), ("x",), island=island) for island in islands]
    try:
        yield slices
    finally:
        for slice in slices:
            release(slice)

"""What a cluster is at, as data and as tables. Plain data."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from pathways.runtime.timelines.tables import html_table, size, table


@dataclasses.dataclass(frozen=True)
class HostStatus:
    """How a host is.

    Attributes:
      host: its number.
      island: the name of its island; of this process, of its islands.
      pid: its process.
      platform: the platform of its devices.
      devices: how many it has.
      arrays: how many arrays it holds for programs and their callers; None when it does not say.
      bytes: the bytes of these arrays, all shards together; None when it does not say.
      programs: the names of the programs that are loaded on it.
      error: why it is lost, or leaves; None while it does not.
      round_trip: seconds that a question to it and its answer take; None when that is not known.
    """

    host: int
    island: str
    pid: int
    platform: str
    devices: int
    arrays: int | None
    bytes: int | None
    programs: tuple[str, ...]
    error: str | None = None
    round_trip: float | None = None


@dataclasses.dataclass(frozen=True)
class SliceStatus:
    """Where a slice is.

    Attributes:
      name: its name.
      island: the island that it lies in.
      devices: the positions of its devices in the cluster.
      program: the program that was the first to use it.
    """

    name: str
    island: str
    devices: tuple[int, ...]
    program: str


@dataclasses.dataclass(frozen=True)
class StepStatus:
    """A step that is not done.

    Attributes:
      program: the name of its program.
      number: its number.
      seconds: since when it is issued.
      hosts: the hosts that are not done with it.
    """

    program: str
    number: int
    seconds: float
    hosts: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Status:
    """What a cluster is at; `print` shows it.

    Attributes:
      backend: `local` for the devices of this process, `hosts` for those of workers.
      hosts: the hosts.
      slices: the slices that have devices.
      steps: the steps that are not done. Those of this process are not counted.
      waits_for_network: whether steps have waited of late for the longest round trip to a host, rather than
        for what they compute. More of them under way (`ahead`) would hide it.
    """

    backend: str
    hosts: tuple[HostStatus, ...]
    slices: tuple[SliceStatus, ...]
    steps: tuple[StepStatus, ...] = ()
    waits_for_network: bool = False

    @property
    def longest_round_trip(self) -> tuple[int, float] | None:
        """The host that is the farthest, and the seconds to it and back; None when that is not known."""
        known = [(host.host, host.round_trip) for host in self.hosts if host.round_trip is not None]
        return max(known, key=lambda each: each[1], default=None)

    def _network(self) -> str:
        if (longest := self.longest_round_trip) is None:
            return ""
        host, seconds = longest
        waits = "steps wait for it; more steps in flight (ahead=) would hide it"
        return (
            f"longest round trip: {seconds * 1e3:.3g} ms, to host {host}; "
            f"{waits if self.waits_for_network else 'steps do not wait for it'}"
        )

    def _tables(self) -> dict[str, list[tuple[str, ...]]]:
        hosts = [
            (
                str(host.host),
                host.island,
                str(host.pid),
                f"{host.devices} {host.platform}",
                "?" if host.arrays is None else str(host.arrays),
                "?" if host.bytes is None else size(host.bytes),
                _counted(host.programs) or "-",
                host.error or "alive",
            )
            for host in self.hosts
        ]
        slices = [(s.name, s.island, " ".join(map(str, s.devices)), s.program) for s in self.slices]
        steps = [
            (s.program, str(s.number), f"{s.seconds:.1f} s", " ".join(map(str, s.hosts))) for s in self.steps
        ]
        shown: dict[str, list[tuple[str, ...]]] = {
            "hosts": [
                ("host", "island", "process", "devices", "arrays", "bytes", "programs", "state"),
                *hosts,
            ],
            "slices": [("slice", "island", "devices", "first program"), *slices],
            "steps": [("program", "step", "since", "hosts not done"), *steps],
        }
        return {name: rows for name, rows in shown.items() if len(rows) > 1}

    def __str__(self) -> str:
        tables = [f"{name}\n{table(rows)}" for name, rows in self._tables().items()]
        return "\n".join([*tables, *filter(None, [self._network()])])

    def _repr_html_(self) -> str:
        """The tables, in a notebook."""
        tables = "".join(f"<h4>{name}</h4>{html_table(rows)}" for name, rows in self._tables().items())
        return f"{tables}<p>{self._network()}</p>" if self._network() else tables


def _counted(names: Sequence[str]) -> str:
    """Names, each once, with how often they are there."""
    counts = collections.Counter(names)
    return " ".join(name if count == 1 else f"{name} ({count})" for name, count in counts.items())

"""Messages between a simulated controller and its workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pathways.runtime.control.records.errors import Failure
from pathways.runtime.control.records.reports import HostReport

if TYPE_CHECKING:
    from simulated_worker import SimulatedWorker


@dataclasses.dataclass(frozen=True, slots=True)
class SimulatedProgram:
    """A computation goes from island to island; each adds what it takes to what it gets.

    Attributes:
      salt: what tells it from others.
      route: the islands, in order.
      outputs: how many arrays the last turn of each island makes.
    """

    salt: int
    route: tuple[int, ...]
    outputs: int

    def turns(self, island: int) -> list[int]:
        """Returns the turns of an island."""
        return [turn for turn, other in enumerate(self.route) if other == island]

    def value(self, turn: int, taken: tuple[int, ...], received: int) -> int:
        """Returns the value of a turn, from the arrays of its island and the value of the turn before."""
        return hash((self.salt, turn, taken, received))

    def expected(self, taken: Mapping[int, tuple[int, ...]]) -> dict[int, list[int]]:
        """Returns the arrays that are made on each island."""
        value, made = 0, {}
        for turn, island in enumerate(self.route):
            value = self.value(turn, taken[island], value)
            made[island] = [hash((value, position)) for position in range(self.outputs)]
        return made


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """A step; `gangs` are those of the program, by their islands, `first` is the first array it makes."""

    run: int
    first: int
    program: SimulatedProgram
    gangs: Mapping[int, tuple[SimulatedWorker, ...]]
    arguments: tuple[int, ...]
    free: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A call of a function, which takes so many seconds and may raise."""

    call: int
    salt: int
    arguments: tuple[int, ...]
    seconds: float
    raises: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Called:
    call: int
    value: int
    error: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Free:
    arrays: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Fetch:
    request: int
    array: int


@dataclasses.dataclass(frozen=True, slots=True)
class Cancel:
    """Frees what is kept for some hosts of some steps."""

    hosts: tuple[SimulatedWorker, ...]
    runs: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Ping:
    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class RequestReport:
    request: int


@dataclasses.dataclass(frozen=True, slots=True)
class Lost:
    hosts: tuple[SimulatedWorker, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Leave:
    pass


@dataclasses.dataclass(frozen=True, slots=True)
class Missed:
    run: int
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    run: int
    error: str | None
    wrong: Mapping[int, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """A piece of an answer to a request."""

    request: int
    value: int | HostReport | Failure
    is_last: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Pong:
    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class Leaving:
    pass


@dataclasses.dataclass(frozen=True, slots=True)
class PeerLost:
    peer: SimulatedWorker
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class PeerFound:
    peer: SimulatedWorker


@dataclasses.dataclass(frozen=True, slots=True)
class FailedArray:
    """Stand-in for an array that a failed step should have computed."""

    error: str

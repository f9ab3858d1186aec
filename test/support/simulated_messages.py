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
    """Computation that goes from island to island; each stage combines its arguments with the stage before.

    Attributes:
      salt: makes its values differ from those of other programs.
      route: the islands of the stages, in order.
      outputs: the number of arrays that the last stage of each island produces.
      alone: the rank of the host of its only island that runs it alone; None for all.
    """

    salt: int
    route: tuple[int, ...]
    outputs: int
    alone: int | None = None

    def stages(self, island: int) -> list[int]:
        """Returns the stages of an island."""
        return [stage for stage, other in enumerate(self.route) if other == island]

    def value(self, stage: int, arguments: tuple[int, ...], received: int) -> int:
        """Returns the value of a stage, from the arrays of its island and the value of the stage before."""
        return hash((self.salt, stage, arguments, received))

    def expected(self, arguments: Mapping[int, tuple[int, ...]]) -> dict[int, list[int]]:
        """Returns the arrays that each island produces."""
        value, outputs = 0, {}
        for stage, island in enumerate(self.route):
            value = self.value(stage, arguments[island], value)
            outputs[island] = [hash((value, position)) for position in range(self.outputs)]
        return outputs


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """Step; `gangs` are those of the program, by their islands, `first` is the number of its first array."""

    run: int
    first: int
    program: SimulatedProgram
    gangs: Mapping[int, tuple[SimulatedWorker, ...]]
    arguments: tuple[int, ...]
    free: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """Call of a function, which takes `seconds` and may raise."""

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
    """Request to free values that some hosts have not fetched of some steps."""

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
class Reply:
    """Piece of a reply to a request."""

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

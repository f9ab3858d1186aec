"""What clients of a service ask for, what happens to it, and what is to be done: the scheduler's words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pathways.runtime.control.records.step import Step

FIRST_ESTIMATE = 1e-3
"""How long a step of a new program may take, in seconds."""


_NOTHING: Mapping[int, Sequence[int]] = {}
_NEVER: Mapping[int, int] = {}


class QueuedStep(Step):
    """A step of a session that shares the islands with others: it waits in lines until it is issued.

    Args:
      client: the number of the session.
      number: that of the step, see `Step`.
      loaded: that of the program: its steps take about as long as each other.
      takes: the numbers of the arrays that it takes on each of its islands.
      makes: those of the arrays that it makes there.
      sent: those that it takes and that its client sends itself: they are waited for.
      share: for how many places it counts.
      donates: those of the arrays that it takes on each of its islands that end with it.
      starts: how often workers of each of its islands were started before those that it is for.
      program: the name of its program.
      hosts: the numbers of the hosts that have a part of it.

    Attributes:
      islands: the numbers of its islands.
    """

    __slots__ = (
        "_blocked_at",
        "_firsts",
        "_keys",
        "_left",
        "_missing",
        "_order",
        "_state",
        "_token",
        "client",
        "donates",
        "islands",
        "makes",
        "sent",
        "starts",
        "takes",
    )

    def __init__(
        self,
        client: int,
        number: int,
        loaded: int,
        takes: Mapping[int, Sequence[int]],
        makes: Mapping[int, Sequence[int]],
        sent: frozenset[int] = frozenset(),
        share: int = 1,
        donates: Mapping[int, Sequence[int]] = _NOTHING,
        starts: Mapping[int, int] = _NEVER,
        program: str = "",
        hosts: Iterable[int] = (),
    ) -> None:
        super().__init__(program, number, hosts, loaded, share=share)
        self.client = client
        self.islands = tuple(takes)
        self.takes = takes
        self.makes = makes
        self.sent = sent
        self.donates = donates
        self.starts = starts
        # In how many lines it is first, how many arrays are not there, and on which islands it is not done.
        self._firsts = 0
        self._missing = 0
        # Which of its islands had no room for it when it was looked at last.
        self._blocked_at = 0
        self._left = set(self.islands)
        self._state: Literal["waits", "ready", "issued", "dropped"] = "waits"
        self._keys: Mapping[int, float] = {}
        self._order = 0
        self._token = 0

    def __repr__(self) -> str:
        return f"QueuedStep({self.client}, {self.number})"

    @property
    def is_issued(self) -> bool:
        """Whether it has its places, and was sent to its hosts."""
        return self._state == "issued"


@dataclasses.dataclass(frozen=True, slots=True)
class OrderedRequest:
    """What is done on an island when all is issued there that the client asked for before.

    Attributes:
      client: the number of the client.
      island: that of the island.
      frees: the numbers of the arrays that end with it.
      takes: those of the arrays that it looks at.
      makes: those of the arrays that it makes.
      sent: those of all that its client sends itself: they are waited for.
      is_call: whether its dispatch only starts it, and `CallFinished` ends it. Until then no step is issued
        that takes its results, or that donates its arguments.
      number: that of a call, see `Step`.
      name: what a call is called.
      hosts: the numbers of the hosts that make a call.
      what: for the shell.
    """

    client: int
    island: int
    frees: tuple[int, ...] = ()
    takes: tuple[int, ...] = ()
    makes: tuple[int, ...] = ()
    sent: frozenset[int] = frozenset()
    is_call: bool = False
    number: int = 0
    name: str = ""
    hosts: tuple[int, ...] = ()
    what: Any = dataclasses.field(default=None, repr=False)


# What happens.


@dataclasses.dataclass(frozen=True, slots=True)
class ClientJoined:
    """A client is there."""

    client: int
    weight: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class ClientLeft:
    """A client is gone, however it ended."""

    client: int


@dataclasses.dataclass(frozen=True, slots=True)
class WorkSubmitted:
    """A client asks for a step, or for what has an order among its steps."""

    item: QueuedStep | OrderedRequest


@dataclasses.dataclass(frozen=True, slots=True)
class ArrayArrived:
    """All of an array that a client sends is on its way to an island, in front of all that follows.

    Attributes:
      client: the number of the client.
      island: that of the island.
      start: how often its workers were started before those that the array was sent to.
      array: the number of the array.
    """

    client: int
    island: int
    start: int
    array: int


@dataclasses.dataclass(frozen=True, slots=True)
class CallFinished:
    """A call that had its turn has ended, or is not made: what it makes is there, or an error instead."""

    call: OrderedRequest


@dataclasses.dataclass(frozen=True, slots=True)
class IslandStepDone:
    """An island is done with its part of a step; `took` is how long it had the devices, in seconds."""

    step: QueuedStep
    island: int
    took: float


@dataclasses.dataclass(frozen=True, slots=True)
class IslandLeaving:
    """An island takes no more steps; those under way go on, and what it has can be looked at."""

    island: int
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class IslandLost:
    """An island is gone, with all arrays there and all that was under way."""

    island: int
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class IslandReturned:
    """An island is there again, and empty."""

    island: int


@dataclasses.dataclass(frozen=True, slots=True)
class RoundTripMeasured:
    """A message to the farthest host of an island and its answer take so many seconds."""

    island: int
    seconds: float


SchedulerEvent = (
    ClientJoined
    | ClientLeft
    | WorkSubmitted
    | ArrayArrived
    | CallFinished
    | IslandStepDone
    | IslandLeaving
    | IslandLost
    | IslandReturned
    | RoundTripMeasured
)


# What is to be done.


@dataclasses.dataclass(frozen=True, slots=True)
class IssueStep:
    """The step is sent to all its islands."""

    step: QueuedStep


@dataclasses.dataclass(frozen=True, slots=True)
class DispatchRequest:
    """It is the turn of what has an order.

    Attributes:
      item: what.
      frees: those of the arrays that end with it that are there.
      is_there: whether all are that it looks at.
      why: the `Failure` because of which a call is not made; None where it is.
    """

    item: OrderedRequest
    frees: tuple[int, ...]
    is_there: bool = True
    why: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class RefuseStep:
    """The step will not run; why is said."""

    step: QueuedStep
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class FreeClientArrays:
    """The client is gone, and an island frees these arrays of it."""

    client: int
    island: int
    arrays: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class DisconnectClient:
    """The client asks for what cannot be; it is to end, and `ClientLeft` follows."""

    client: int
    why: str


SchedulerEffect = IssueStep | DispatchRequest | RefuseStep | FreeClientArrays | DisconnectClient

"""Events and effects of the scheduler: submissions of clients, their progress, and the resulting actions.

They are structs of msgspec, since each step makes several of them, and a frozen dataclass takes five times as
long to create. `OrderedRequest` is none: its context is left out where it is printed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from pathways.runtime.control.effects import Effect
from pathways.runtime.control.records.step import Step
from pathways.runtime.resources.accounts import Wait
from pathways.runtime.service.sharing.accounts import StepUse
from pathways.runtime.service.sharing.memory import ClientMemory, DeviceBytes, DeviceLimits, StepBytes
from pathways.runtime.service.sharing.program_charges import ProgramIdentity

FIRST_ESTIMATE = 1e-3
"""Estimated seconds of a step of a new program."""


_NOTHING: Mapping[int, Sequence[int]] = {}
_NEVER: Mapping[int, int] = {}
_UNLIMITED: Mapping[int, StepBytes] = {}
_UNCOUNTED: Mapping[int, StepUse] = {}
_UNCHARGED = ProgramIdentity()


class QueuedStep(Step):
    """Step of a session that shares the islands with others: it waits in queues until it is issued.

    Args:
      client: the number of the session.
      number: the number of the step, see `Step`.
      loaded: the number of its program, whose steps take about the same time.
      arguments: the numbers of the arrays that it reads on each of its islands.
      results: the numbers of the arrays that it returns there.
      sent: the arguments that its client sends itself, and that it waits for.
      share: the number of places that it takes.
      donates: the numbers of its donated arguments on each of its islands.
      starts: for each of its islands, how often workers were started before its own.
      is_foreign: whether its program is one of an extension, whose clients run many programs a few times
        each: the first steps of one have the estimate of the client.
      memory: the memory that it needs on each of its islands where memory is limited.
      identity: the identity of its program, which is charged with the losses that it causes.
      uses: its use of each of its islands, for the accounts of its client.
    """

    __slots__ = (
        "_blocked_at",
        "_firsts",
        "_keys",
        "_left",
        "_level",
        "_missing",
        "_order",
        "_owner",
        "_ready_since",
        "_state",
        "_token",
        "_wait",
        "_waits_since",
        "arguments",
        "client",
        "donates",
        "identity",
        "is_foreign",
        "islands",
        "memory",
        "results",
        "sent",
        "starts",
        "uses",
    )

    def __init__(
        self,
        client: int,
        number: int,
        loaded: int,
        arguments: Mapping[int, Sequence[int]],
        results: Mapping[int, Sequence[int]],
        sent: frozenset[int] = frozenset(),
        share: int = 1,
        donates: Mapping[int, Sequence[int]] = _NOTHING,
        starts: Mapping[int, int] = _NEVER,
        program: str = "",
        hosts: Iterable[int] = (),
        *,
        is_foreign: bool = False,
        memory: Mapping[int, StepBytes] = _UNLIMITED,
        identity: ProgramIdentity = _UNCHARGED,
        uses: Mapping[int, StepUse] = _UNCOUNTED,
    ) -> None:
        super().__init__(program, number, hosts, loaded, share=share)
        self.identity = identity
        self.uses = uses
        self.is_foreign = is_foreign
        self.memory = memory
        self.client = client
        self.islands = tuple(arguments)
        self.arguments = arguments
        self.results = results
        self.sent = sent
        self.donates = donates
        self.starts = starts
        # The number of queues in which it is first, and of arrays that are missing.
        self._firsts = 0
        self._missing = 0
        # Index of the island that had no room for it when it was last checked.
        self._blocked_at = 0
        self._left = {*self.islands}
        self._state: Literal["waits", "ready", "issued", "dropped"] = "waits"
        self._keys: Mapping[int, float] = {}
        self._order = 0
        self._token = 0
        # Since when it is ready, and its priority when it was last sorted.
        self._ready_since = 0.0
        self._level = 0
        # The memory of its client, once it is issued.
        self._owner: ClientMemory | None = None
        # Why it waits and since when, if it is the first step in the queue of its client.
        self._wait: Wait | None = None
        self._waits_since = 0.0

    def __repr__(self) -> str:
        return f"QueuedStep({self.client}, {self.number})"

    @property
    def is_issued(self) -> bool:
        """Whether it has its places, and was sent to its hosts."""
        return self._state == "issued"

    def wait(self, why: Wait | None, now: float) -> None:
        """Counts the time of its wait so far; from now on it waits for another reason, or not at all."""
        before = self._wait
        if before == why:
            return
        if before is not None and now > self._waits_since:
            for use in self.uses.values():
                use.count_wait(before, (now - self._waits_since) / len(self.uses))
        self._wait, self._waits_since = why, now


@dataclasses.dataclass(eq=False, slots=True)
class OrderedRequest:
    """Request on an island that runs once all earlier steps and requests of its client are issued there.

    Attributes:
      frees: the numbers of the arrays that it frees; fewer once some are freed earlier.
      arguments: the numbers of the arrays that it reads.
      results: the numbers of the arrays that it returns.
      sent: the numbers of its arrays that its client sends itself, and that it waits for.
      is_call: whether its dispatch only starts it, and `CallFinished` ends it. Until then no step is issued
        that reads its results, or that donates its arguments.
      number: the number of a call, see `Step`.
      hosts: the numbers of the hosts of a call.
      memory: the bytes of each result of a call on the devices of its island; empty where memory is not
        limited.
      use: the use of its island by a call, for the accounts of its client.
      moved: the bytes that it moves to its client.
      context: context for the shell.
    """

    client: int
    island: int
    frees: tuple[int, ...] = ()
    arguments: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    sent: frozenset[int] = frozenset()
    is_call: bool = False
    number: int = 0
    name: str = ""
    hosts: tuple[int, ...] = ()
    memory: tuple[DeviceBytes, ...] = ()
    use: StepUse | None = dataclasses.field(default=None, repr=False)
    moved: int = 0
    context: Any = dataclasses.field(default=None, repr=False)


# Events.


class ClientJoined(msgspec.Struct, frozen=True):
    """Notice that a client has connected.

    Attributes:
      name: the name by which it has a quota.
      priority: its steps come before all steps of clients with a lower one.
      is_suspended: whether nothing of it is dispatched, see `ClientChanged`.
      step_limit: seconds that each of its steps may run; None for any.
    """

    client: int
    weight: float = 1.0
    name: str = ""
    priority: int = 0
    is_suspended: bool = False
    step_limit: float | None = None


class ClientChanged(msgspec.Struct, frozen=True):
    """Notice that a connected client has another weight, priority or quota, or is suspended or resumed."""

    client: int
    weight: float
    priority: int
    is_suspended: bool


class ClientLeft(msgspec.Struct, frozen=True):
    """Notice that a client has disconnected, for whatever reason."""

    client: int


class WorkSubmitted(msgspec.Struct, frozen=True):
    """Submission of a step, or of a request that is ordered among the steps of its client."""

    item: QueuedStep | OrderedRequest


class ArrayArrived(msgspec.Struct, frozen=True):
    """Notice that an array of a client is on its way to an island, completely, before all later messages.

    Attributes:
      start: how often the island's workers were started before the receiving ones.
      bytes: its bytes, all shards together.
    """

    client: int
    island: int
    start: int
    array: int
    bytes: int = 0


class ArrayOffered(msgspec.Struct, frozen=True):
    """Notice that a client begins to send an array; the reply is `AcceptArray` or `DenyArray`.

    Attributes:
      start: as in `ArrayArrived`.
      memory: its bytes on the devices of the island.
    """

    client: int
    island: int
    start: int
    array: int
    memory: DeviceBytes


class MemoryCollected(msgspec.Struct, frozen=True):
    """Reply of a client to `CollectMemory`: it has freed arrays without references."""

    client: int


class CallFinished(msgspec.Struct, frozen=True):
    """End of a dispatched call, or notice that it is not begun: its results, or errors, are available."""

    call: OrderedRequest


class ClientMoved(msgspec.Struct, frozen=True):
    """Report of a client that it needs nothing on an island that is drained; after its last step there.

    Attributes:
      start: how often the workers of the island were started before.
    """

    client: int
    island: int
    start: int


class IslandStepDone(msgspec.Struct, frozen=True):
    """End of a step on an island.

    Attributes:
      took: the time for which it had the devices there, in seconds.
      has_failed: whether it has ended with an error on a host.
    """

    step: QueuedStep
    island: int
    took: float
    has_failed: bool = False


class IslandLeaving(msgspec.Struct, frozen=True):
    """Notice that an island accepts no more steps; those in flight continue, and its arrays can be read."""

    island: int
    why: str


class IslandLost(msgspec.Struct, frozen=True):
    """Loss of an island, with all its arrays and steps in flight."""

    island: int
    why: str


class IslandReturned(msgspec.Struct, frozen=True):
    """Return of an island, without arrays."""

    island: int


class IslandJoined(msgspec.Struct, frozen=True):
    """Join of a new island, which has the next number.

    Attributes:
      limits: the memory of its devices; None where it is not limited.
    """

    island: int
    limits: DeviceLimits | None = None


class RoundTripMeasured(msgspec.Struct, frozen=True):
    """Measured round trip of a message to the farthest host of an island, in seconds."""

    island: int
    seconds: float


SchedulerEvent = (
    ClientJoined
    | ClientLeft
    | WorkSubmitted
    | ClientChanged
    | ArrayArrived
    | ArrayOffered
    | MemoryCollected
    | CallFinished
    | ClientMoved
    | IslandStepDone
    | IslandLeaving
    | IslandLost
    | IslandReturned
    | IslandJoined
    | RoundTripMeasured
)


# Effects.


class IssueStep(Effect, msgspec.Struct, frozen=True):
    """Issue of a step: it is sent to all its islands."""

    step: QueuedStep


class DispatchRequest(Effect, msgspec.Struct, frozen=True):
    """Dispatch of an ordered request.

    Attributes:
      item: the request.
      frees: the arrays to free that exist.
      has_arguments: whether all its arguments exist.
      why: the `Failure` that prevents a call; None if it is begun.
      denied: why an argument was denied; None if none was.
    """

    item: OrderedRequest
    frees: tuple[int, ...]
    has_arguments: bool = True
    why: Any = None
    denied: str | None = None


class RefuseStep(Effect, msgspec.Struct, frozen=True):
    """Refusal of a step, with the reason.

    Attributes:
      is_over_quota: whether it, or a step whose result it reads, exceeds the quota of its client.
    """

    step: QueuedStep
    why: str
    is_over_quota: bool = False


class CollectMemory(Effect, msgspec.Struct, frozen=True):
    """Request to a client that exceeds its quota to free arrays without references."""

    client: int


class AcceptArray(Effect, msgspec.Struct, frozen=True):
    """Permission to send an array to its island."""

    offer: ArrayOffered


class DenyArray(Effect, msgspec.Struct, frozen=True):
    """Refusal of an array, with the reason; None if its island, or its client, has no use for it."""

    offer: ArrayOffered
    why: str | None


class FreeClientArrays(Effect, msgspec.Struct, frozen=True):
    """Request to free the arrays of a client that has left on an island."""

    client: int
    island: int
    arrays: tuple[int, ...]


class DisconnectClient(Effect, msgspec.Struct, frozen=True):
    """Request to disconnect a client that breaks a rule; `ClientLeft` follows."""

    client: int
    why: str


SchedulerEffect = (
    IssueStep
    | DispatchRequest
    | RefuseStep
    | CollectMemory
    | AcceptArray
    | DenyArray
    | FreeClientArrays
    | DisconnectClient
)

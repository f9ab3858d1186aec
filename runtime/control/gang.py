"""The life of a gang: the workers of an island, started together and lost together.

When one of several is lost, or fails at what the others do with it, it is unknown what the others have
computed: so all of them are. Those that take their place are another gang.

A gang is in one of seven states. `Running` accepts new steps. A gang that was asked to end is `Draining`: it
refuses new steps, and goes on until nobody waits for it or holds an array of it, or its time is over; then it
is `Terminating`, and the exit of its processes is no loss. After either end it is `Restarting` until another
gang takes its place, and then `Replaced`, or until none will: `Dead`. A start that fails, as over a network
that is cut, is tried again after a pause, in which the gang is `Pausing`.

`TRANSITIONS` says what each event makes of each state. All state of a gang is in this file, and nothing else
changes it.
"""

from __future__ import annotations

import abc
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pathways.runtime.control.effects import AttachGang, Effect, Log, RequestExit, RestartGang
from pathways.runtime.control.records.errors import (
    ClusterClosedError,
    Failure,
    HostLeavingError,
    lost,
)
from pathways.runtime.control.records.events import (
    ExitOverdue,
    GangClosed,
    GangDrained,
    GangEvent,
    GangKey,
    GangStarted,
    GangStartFailed,
    GangTerminated,
    HostLost,
    LeaveRequested,
    RestartDue,
)
from pathways.runtime.control.records.pending_frees import PendingFrees
from pathways.runtime.control.records.window import Window

MOST_RESTARTS = 3
"""How often an island is started anew, one time after the other, without having done a step."""

START_SECONDS = 120.0
"""How long workers may take to start."""

_FIRST_CONTACT = 15.0
"""How long they may take to connect when an island starts anew; twice as long after each time in vain. What
was begun while the network is cut may wait for long when it has healed."""

_PAUSES = (0.5, 1.0, 2.0)
"""Seconds from one start in vain to the next; the last stands for all that follow."""

END_SECONDS = 2.0
"""How long processes may take to end that were told to."""

_ASKED = "its process was asked to end (SIGTERM)"


@dataclasses.dataclass(frozen=True, slots=True)
class Running:
    """It takes what is new."""


@dataclasses.dataclass(frozen=True, slots=True)
class Draining:
    """It was asked to end, and takes nothing new.

    Attributes:
      host: the host that was asked.
      deadline: when it has had its time.
    """

    host: int
    deadline: float


@dataclasses.dataclass(frozen=True, slots=True)
class Terminating:
    """Its processes were told to end.

    Attributes:
      host: the host that was asked.
      why: why it leaves.
      left: the hosts whose processes have not ended.
      deadline: when it is not waited for any more.
    """

    host: int
    why: str
    left: frozenset[int]
    deadline: float


@dataclasses.dataclass(frozen=True, slots=True)
class Restarting:
    """It is gone, and another one is to take its place.

    Attributes:
      failure: why it is gone.
      until: when it is not tried any more.
      restarts: how often the island was lost, one time after the other, without having done a step.
      cut_since: when it was lost first because others did not reach it, without having done a step since.
      tries: how often it was tried in vain.
    """

    failure: Failure
    until: float
    restarts: int
    cut_since: float | None
    tries: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Pausing:
    """It is gone, and it is tried again to start another one in its place.

    Attributes:
      failure: why it is gone.
      before: what it was at.
      again: when it is tried again.
    """

    failure: Failure
    before: Restarting
    again: float


@dataclasses.dataclass(frozen=True, slots=True)
class Replaced:
    """It is gone, and another one has taken its place.

    Attributes:
      failure: why it is gone.
      restarts: see `Restarting`.
      cut_since: see `Restarting`.
    """

    failure: Failure
    restarts: int
    cut_since: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Dead:
    """It is gone, and nothing takes its place."""

    failure: Failure


State = Running | Draining | Terminating | Restarting | Pausing | Replaced | Dead
Gone = Restarting | Pausing | Replaced | Dead


@dataclasses.dataclass(slots=True)
class HostActivity:
    """When a host was heard of, in seconds. The shell writes it on the hot path.

    Attributes:
      heard: when it said something last.
      progressed: when it was done with a step last, or began.
    """

    heard: float
    progressed: float


class GangView(abc.ABC):
    """The workers of an island, as those see them who give them steps.

    Args:
      key: which island's workers they are, and how often these were started before.
      hosts: their numbers, in the order of their devices.
      ahead: how many steps may be under way.
      now: when they were started.

    Attributes:
      name: the name of the island.
      is_several: whether they are more than one, so that the loss of one spoils what others did.
      pulses: when each host was heard of.
      window: the steps under way.
      unused: the numbers of the arrays that are no longer held.
    """

    def __init__(self, key: GangKey, hosts: Sequence[int], ahead: int, now: float) -> None:
        self.key = key
        self.name = f"island{key.island}"
        self.hosts = tuple(hosts)
        self.is_several = len(self.hosts) > 1
        self.pulses = {host: HostActivity(now, now) for host in self.hosts}
        self.window = Window(ahead)
        self.unused: PendingFrees[int] = PendingFrees()

    def __str__(self) -> str:
        return self.name

    def named(self, host: int) -> str:
        """Returns the name of a host in messages."""
        return f"host {host} ({self.name})"

    def closed(self, how: str) -> Failure:
        """Returns the failure of all that this process has here once it has closed the cluster.

        Args:
          how: the end of the sentence `host 0 (island0) ...`.
        """
        return Failure(ClusterClosedError, f"{self.named(self.hosts[0])} {how}")

    @property
    @abc.abstractmethod
    def failure(self) -> Failure | None:
        """Why it is gone; None while it is not."""

    @property
    @abc.abstractmethod
    def problem(self) -> Failure | None:
        """Why it takes nothing new; None while it does."""

    @abc.abstractmethod
    def is_replaced_soon(self) -> bool:
        """Whether it is worth waiting for the gang that takes its place."""

    @abc.abstractmethod
    def is_dead(self) -> bool:
        """Whether it is gone, and nothing takes its place."""

    def check(self) -> None:
        """Checks that it, and with it what it has, is there.

        Raises:
          HostError: it is gone.
        """
        if failure := self.failure:
            raise failure.error()

    def check_open(self) -> None:
        """Checks that it takes what is new.

        Raises:
          HostError: it is gone, or leaves.
        """
        if problem := self.problem:
            raise problem.error()


class Gang(GangView):
    """The workers of an island, from their start to their end.

    Args:
      key: which island's workers they are, and how often these were started before.
      hosts: their numbers, in the order of their devices.
      ahead: how many steps may be under way.
      grace: seconds that it may take to end.
      now: when they were started.
      restart_seconds: how long it is tried to start another one in its place.
      restarts: how often the island was started anew before, each time without having done a step.
      cut_since: see `Restarting`.

    Attributes:
      state: what it is at.
      grace: seconds that it may take to end.
    """

    def __init__(
        self,
        key: GangKey,
        hosts: Sequence[int],
        *,
        ahead: int,
        grace: float,
        now: float,
        restart_seconds: float = 300.0,
        restarts: int = 0,
        cut_since: float | None = None,
    ) -> None:
        super().__init__(key, hosts, ahead, now)
        self.state: State = Running()
        self._ahead = ahead
        self.grace = grace
        self._began = now
        self._restart_seconds = restart_seconds
        self._restarts = restarts
        self._cut_since = cut_since

    @property
    def failure(self) -> Failure | None:
        """Why it is gone; None while it is not."""
        state = self.state
        return state.failure if isinstance(state, Gone) else None

    @property
    def leaving(self) -> Failure | None:
        """Why it takes nothing new though it is not gone; None while it does."""
        state = self.state
        if not isinstance(state, Draining | Terminating):
            return None
        return Failure(HostLeavingError, self._leaves(state.host))

    @property
    def problem(self) -> Failure | None:
        """Why it takes nothing new; None while it does."""
        return None if type(self.state) is Running else self.failure or self.leaving

    def is_replaced_soon(self) -> bool:
        """Whether it is worth waiting for the gang that takes its place."""
        return isinstance(self.state, Restarting | Pausing | Replaced)

    def successor(self, now: float) -> Gang:
        """The gang that has taken its place."""
        assert isinstance(self.state, Replaced), self.state
        return Gang(
            self._next_key(),
            self.hosts,
            ahead=self._ahead,
            grace=self.grace,
            now=now,
            restart_seconds=self._restart_seconds,
            restarts=self.state.restarts,
            cut_since=self.state.cut_since,
        )

    def _next_key(self) -> GangKey:
        return GangKey(self.key.island, self.key.start + 1)

    def is_dead(self) -> bool:
        """Whether it is gone, and nothing takes its place."""
        return isinstance(self.state, Dead)

    def is_closed(self) -> bool:
        """Whether this process has let go of it: no one has to know."""
        failure = self.failure
        return failure is not None and failure.kind is ClusterClosedError

    def _leaves(self, host: int) -> str:
        return f"{self.named(host)} is leaving: {_ASKED}; its island accepts nothing more"

    def handle(self, event: GangEvent, now: float) -> list[Effect]:
        """Goes to the state that `TRANSITIONS` says, and returns what is to be done.

        Raises:
          AssertionError: no row of it has the event in this state.
        """
        act = TRANSITIONS.get((type(self.state), type(event)))
        if act is None:
            raise AssertionError(
                f"{self.name} is {type(self.state).__name__}, and takes no {type(event).__name__}"
            )
        self.state, effects = act(self, self.state, event, now)
        return effects

    # The acts of `TRANSITIONS`: of a state and an event they make the next state, and what is to be done.

    def _stay(self, state: State, event: GangEvent, now: float) -> tuple[State, list[Effect]]:
        return state, []

    def _drain(self, state: Running, event: LeaveRequested, now: float) -> tuple[State, list[Effect]]:
        draining = Draining(event.host, now + self.grace)
        readable = f"its arrays can be read for up to {self.grace:.0f} seconds"
        return draining, [Log(logging.WARNING, f"{self._leaves(event.host)}; {readable}")]

    def _tell_to_end(self, state: Draining, event: GangDrained, now: float) -> tuple[State, list[Effect]]:
        why = _ASKED + event.unfinished
        return Terminating(state.host, why, frozenset(self.hosts), now + END_SECONDS), [RequestExit(self.key)]

    def _one_ends(self, state: Terminating, event: HostLost, now: float) -> tuple[State, list[Effect]]:
        left = state.left - {event.host}
        return (dataclasses.replace(state, left=left), []) if left else self._leave(state, event, now)

    def _leave(self, state: Terminating, event: GangEvent, now: float) -> tuple[State, list[Effect]]:
        return self._gone(f"{self.named(state.host)} has left: {state.why}", now)

    def _lose(self, state: State, event: HostLost, now: float) -> tuple[State, list[Effect]]:
        has_done_a_step = any(pulse.progressed > self._began for pulse in self.pulses.values())
        is_well = has_done_a_step or isinstance(state, Draining)
        restarts, cut_since = (0, None) if is_well else (self._restarts, self._cut_since)
        if event.is_cut:
            # A network that does not heal is bounded by time.
            cut_since = now if cut_since is None else cut_since
        elif not is_well:
            restarts += 1
        return self._gone(f"{self.named(event.host)} is lost: {event.why}", now, restarts, cut_since)

    def _gone(
        self, text: str, now: float, restarts: int = 0, cut_since: float | None = None
    ) -> tuple[State, list[Effect]]:
        until = now + self._restart_seconds
        return Restarting(lost(text), until, restarts, cut_since), [Log(logging.ERROR, text)]

    def _start(self, state: Restarting, event: GangTerminated, now: float) -> tuple[State, list[Effect]]:
        if state.restarts > MOST_RESTARTS:
            why = f"it is not restarted, because it was lost {MOST_RESTARTS} times before it had done a step"
            return self._give_up(state, why)
        if state.cut_since is not None and now - state.cut_since > self._restart_seconds:
            seconds = now - state.cut_since
            why = f"it is not restarted, because it was cut off again and again for {seconds:.0f} seconds"
            return self._give_up(state, why)
        return state, [Log(logging.INFO, f"{self.name} starts anew"), RestartGang(self.key, _FIRST_CONTACT)]

    def _start_failed(
        self, state: Restarting, event: GangStartFailed, now: float
    ) -> tuple[State, list[Effect]]:
        again = now + _PAUSES[min(state.tries, len(_PAUSES) - 1)]
        if event.is_final or again > state.until:
            return self._give_up(state, event.why)
        text = f"{self.name}: {event.why}; it is tried again for {state.until - now:.0f} seconds"
        # The user is told once.
        level = logging.INFO if state.tries else logging.WARNING
        before = dataclasses.replace(state, tries=state.tries + 1)
        return Pausing(state.failure, before, again), [Log(level, text)]

    def _try_again(self, state: Pausing, event: RestartDue, now: float) -> tuple[State, list[Effect]]:
        left = max(_FIRST_CONTACT, state.before.until - now)
        seconds = min(START_SECONDS, _FIRST_CONTACT * 2**state.before.tries, left)
        return state.before, [RestartGang(self.key, seconds)]

    def _give_up(self, state: Restarting, why: str) -> tuple[State, list[Effect]]:
        return Dead(lost(f"{state.failure.text}; {why}")), [Log(logging.ERROR, f"{self.name}: {why}")]

    def _replace(self, state: Restarting, event: GangStarted, now: float) -> tuple[State, list[Effect]]:
        replaced = Replaced(state.failure, state.restarts, state.cut_since)
        return replaced, [AttachGang(self._next_key()), Log(logging.INFO, f"{self.name} is back")]

    def _close(self, state: State, event: GangClosed, now: float) -> tuple[State, list[Effect]]:
        return Dead(self.closed(event.how)), []

    def _stay_gone(
        self, state: Restarting | Pausing, event: GangClosed, now: float
    ) -> tuple[State, list[Effect]]:
        return Dead(state.failure), []


_Act = Callable[[Gang, Any, Any, float], tuple[State, list[Effect]]]

TRANSITIONS: Mapping[tuple[type[State], type[GangEvent]], _Act] = {
    (Running, LeaveRequested): Gang._drain,
    (Running, HostLost): Gang._lose,
    (Running, GangClosed): Gang._close,
    # Another host of the island was asked, too.
    (Draining, LeaveRequested): Gang._stay,
    (Draining, GangDrained): Gang._tell_to_end,
    (Draining, HostLost): Gang._lose,
    (Draining, GangClosed): Gang._close,
    (Terminating, LeaveRequested): Gang._stay,
    # Whoever hears of it, and however: that is what they were told.
    (Terminating, HostLost): Gang._one_ends,
    (Terminating, ExitOverdue): Gang._leave,
    (Terminating, GangClosed): Gang._close,
    (Restarting, LeaveRequested): Gang._stay,
    (Restarting, HostLost): Gang._stay,
    (Restarting, GangTerminated): Gang._start,
    (Restarting, GangStarted): Gang._replace,
    (Restarting, GangStartFailed): Gang._start_failed,
    (Restarting, GangClosed): Gang._stay_gone,
    (Pausing, LeaveRequested): Gang._stay,
    (Pausing, HostLost): Gang._stay,
    (Pausing, RestartDue): Gang._try_again,
    (Pausing, GangClosed): Gang._stay_gone,
    (Dead, LeaveRequested): Gang._stay,
    (Dead, HostLost): Gang._stay,
    # It was closed while it was buried, or started.
    (Dead, GangTerminated): Gang._stay,
    (Dead, GangStarted): Gang._stay,
    (Dead, GangStartFailed): Gang._stay,
    (Dead, GangClosed): Gang._stay,
}
"""What an event makes of a state. An event that has no row cannot be: `Replaced` takes none, since nothing
listens to workers that were replaced."""

"""Gangs: the workers of an island, started together and lost together, with their states and transitions.

When one of several workers is lost, or fails in a step of all, the results of the others are unknown: so all
of them are lost. The workers that replace them are another gang.

A gang is in one of eight states. `Running` accepts new steps. A gang that is to leave is `Draining`: it
refuses new steps, and continues until no client waits for it or holds an array of it, or its time is over.
Clients that first move their arrays elsewhere may delay that: meanwhile the gang accepts new steps.
Then it is `Terminating`, and the exit of its processes is not a loss. After a loss or exit it is `Restarting`
until another gang replaces it, and then `Replaced`, or until none will: `Dead`. A start that fails, as over a
network that is cut, is retried after a pause, in which the gang is `Pausing`. A gang that a user has taken
out is `Drained` instead, until the user requests that it returns.

`TRANSITIONS` defines the next state for each state and event. All state of a gang is in this file, and
nothing else changes it.
"""

from __future__ import annotations

import abc
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pathways.runtime.control.effects import AttachGang, Effect, Log, RequestExit, RestartGang
from pathways.runtime.control.records.errors import ClusterClosedError, Failure, HostLeavingError, lost
from pathways.runtime.control.records.events import (
    DrainRequested,
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
    ReturnRequested,
)
from pathways.runtime.control.records.pending_frees import PendingFrees
from pathways.runtime.control.records.window import Window

MAX_RESTARTS = 3
"""Maximum of consecutive restarts of an island without a finished step."""

START_SECONDS = 120.0
"""Seconds that workers may take to start."""

_FIRST_CONTACT = 15.0
"""Seconds that restarted workers may take to connect; doubled after each failure. A connection attempt that
was begun while the network was cut may hang for long after it has healed."""

_PAUSES = (0.5, 1.0, 2.0)
"""Seconds between failed starts; the last one repeats."""

END_SECONDS = 2.0
"""Seconds that processes may take to exit once they may."""

SIGNALED = "its process received SIGTERM"
"""Reason why an island leaves whose worker gets the signal."""


@dataclasses.dataclass(frozen=True, slots=True)
class Running:
    """State of a gang that accepts new steps."""


@dataclasses.dataclass(frozen=True, slots=True)
class Draining:
    """State of a gang that leaves: it accepts nothing new once no client delays that.

    Attributes:
      host: the host that received the signal; the first one if none did.
      why: the reason, as the end of a sentence.
      seconds: how long it may take.
      deadline: when that is over.
      stays_out: see `DrainRequested`.
    """

    host: int
    why: str
    seconds: float
    deadline: float
    stays_out: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Terminating:
    """State of a gang whose processes may exit.

    Attributes:
      host: see `Draining`.
      why: see `Draining`.
      left: the hosts whose processes have not exited.
      deadline: when their exits are no longer awaited.
      stays_out: see `DrainRequested`.
    """

    host: int
    why: str
    left: frozenset[int]
    deadline: float
    stays_out: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Restarting:
    """State of a gang that is lost, and that another one is to replace.

    Attributes:
      failure: why it is lost.
      until: when its restart is no longer retried.
      restarts: how often the island was lost in succession without a finished step.
      cut_since: when it was first lost because other hosts did not reach it, without a finished step since.
      tries: the number of failed starts.
      was_out: whether it was `Drained` before, and is again if it cannot be replaced.
    """

    failure: Failure
    until: float
    restarts: int
    cut_since: float | None
    tries: int = 0
    was_out: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Pausing:
    """State of a gang that is lost, until its restart is retried.

    Attributes:
      failure: why it is lost.
      before: its state before.
      again: when the restart is retried.
    """

    failure: Failure
    before: Restarting
    again: float


@dataclasses.dataclass(frozen=True, slots=True)
class Replaced:
    """State of a gang that is lost, and that another one has replaced.

    Attributes:
      failure: why it is lost.
      restarts: see `Restarting`.
      cut_since: see `Restarting`.
    """

    failure: Failure
    restarts: int
    cut_since: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Dead:
    """State of a gang that is lost, and that is not replaced."""

    failure: Failure


@dataclasses.dataclass(frozen=True, slots=True)
class Drained:
    """State of a gang that has left, and that another one replaces only if a user requests it.

    Attributes:
      failure: why it is lost.
      is_terminated: whether its processes have exited, and others know of it.
    """

    failure: Failure
    is_terminated: bool = False


State = Running | Draining | Terminating | Restarting | Pausing | Replaced | Dead | Drained
LostState = Restarting | Pausing | Replaced | Dead | Drained


@dataclasses.dataclass(slots=True)
class HostActivity:
    """Times of a host's last messages, in seconds. The shell writes them on the hot path.

    Attributes:
      heard: when its last message was received.
      progressed: when it was last done with a step, or started.
    """

    heard: float
    progressed: float


class GangView(abc.ABC):
    """Workers of an island, as the clients see them that give them steps.

    Args:
      key: the island, and how often its workers were started before.
      hosts: their numbers, in the order of their devices.
      ahead: the maximum of steps in flight.
      now: the time of their start.

    Attributes:
      is_multi_host: whether they are more than one, so that the loss of one spoils the results of others.
      pulses: the times of each host's last messages.
      window: the steps in flight.
      unused: the numbers of the arrays that are no longer held.
      failure: the reason for its loss; None while it is not lost.
      leaving: the reason why it leaves, though it is not lost; None while it does not.
      problem: the reason why it accepts nothing new; None while it does. Each call of a program reads it, so
        that it is an attribute, which each change of the state sets.
      is_draining: whether it will leave, and accepts steps until clients have moved to others.
      is_out: whether it is lost, and replaced only if a user requests it.
    """

    def __init__(self, key: GangKey, hosts: Sequence[int], ahead: int, now: float) -> None:
        self.key = key
        self.name = f"island{key.island}"
        self.hosts = tuple(hosts)
        self.is_multi_host = len(self.hosts) > 1
        self.pulses = {host: HostActivity(now, now) for host in self.hosts}
        self.window = Window(ahead)
        self.unused: PendingFrees[int] = PendingFrees()
        self.failure: Failure | None = None
        self.leaving: Failure | None = None
        self.problem: Failure | None = None
        self.is_draining = False
        self.is_out = False

    def __str__(self) -> str:
        return self.name

    def host_name(self, host: int) -> str:
        """Returns the name of a host in messages."""
        return self.key.host_name(host)

    def closed_failure(self, ending: str) -> Failure:
        """Returns the failure of all its arrays and steps once this process has closed the cluster.

        Args:
          ending: the end of the sentence `host 0 (island0) ...`.
        """
        return Failure(ClusterClosedError, f"{self.host_name(self.hosts[0])} {ending}")

    @abc.abstractmethod
    def is_replaced_soon(self) -> bool:
        """Returns whether it is worth waiting for the gang that replaces it."""

    @abc.abstractmethod
    def is_dead(self) -> bool:
        """Returns whether it is lost, and not replaced."""

    def state_name(self) -> str:
        """Returns its state for users.

        It is `running`, `draining`, `leaving`, `restarting`, `drained`, or `lost` for good.
        """
        if self.failure is not None:
            return "drained" if self.is_out else "lost" if self.is_dead() else "restarting"
        if self.is_draining:
            return "draining"
        return "running" if self.leaving is None else "leaving"

    def check(self) -> None:
        """Checks that the gang, and with it its arrays, are not lost.

        Raises:
          HostError: the gang is lost.
        """
        if failure := self.failure:
            raise failure.error()

    def check_open(self) -> None:
        """Checks that the gang accepts new steps.

        Raises:
          HostError: the gang is lost, or leaves.
        """
        if problem := self.problem:
            raise problem.error()


class Gang(GangView):
    """Workers of an island, from their start to their end.

    Args:
      key: the island, and how often its workers were started before.
      hosts: their numbers, in the order of their devices.
      ahead: the maximum of steps in flight.
      grace: seconds that it may take to leave.
      now: the time of their start.
      restart_seconds: the seconds for which its restart is retried.
      restarts: how often the island was restarted in succession without a finished step.
      cut_since: see `Restarting`.

    Attributes:
      grace: seconds that it may take to leave.
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
        self._delays = 0
        self._began = now
        self._restart_seconds = restart_seconds
        self._restarts = restarts
        self._cut_since = cut_since

    def _set_problem(self) -> None:
        state = self.state
        self.failure = state.failure if isinstance(state, LostState) else None
        self.leaving = None
        if isinstance(state, Draining | Terminating):
            self.leaving = Failure(HostLeavingError, self._leaves(state.host, state.why))
        self.problem = None if self.is_delayed() else self.failure or self.leaving
        self.is_draining = self.is_delayed()
        self.is_out = isinstance(state, Drained)

    def delay_leave(self, count: int) -> None:
        """Adds to the number of `LeaveDelayed` that are not ended; a negative number ends some."""
        self._delays += count
        self._set_problem()

    def is_delayed(self) -> bool:
        """Returns whether it is to leave, and continues because a client needs it for a while."""
        return self._delays > 0 and isinstance(self.state, Draining)

    def is_replaced_soon(self) -> bool:
        """Returns whether it is worth waiting for the gang that replaces it."""
        return isinstance(self.state, Restarting | Pausing | Replaced)

    def successor(self, now: float) -> Gang:
        """Returns the gang that has replaced it."""
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
        """Returns whether it is lost, and not replaced."""
        return isinstance(self.state, Dead)

    def is_closed(self) -> bool:
        """Returns whether this process has closed it: then no other process has to know."""
        failure = self.failure
        return failure is not None and failure.kind is ClusterClosedError

    def _leaves(self, host: int, why: str) -> str:
        return f"{self.host_name(host)} is leaving: {why}; its island accepts nothing more"

    def handle(self, event: GangEvent, now: float) -> list[Effect]:
        """Changes to the next state of `TRANSITIONS`, and returns the effects to carry out.

        Raises:
          AssertionError: no row of it has the event in this state.
        """
        act = TRANSITIONS.get((type(self.state), type(event)))
        if act is None:
            raise AssertionError(
                f"{self.name} is {type(self.state).__name__}, and accepts no {type(event).__name__}"
            )
        self.state, effects = act(self, self.state, event, now)
        self._set_problem()
        return effects

    # Functions of `TRANSITIONS`: each returns the next state, and the effects to carry out.

    def _stay(self, state: State, event: GangEvent, now: float) -> tuple[State, list[Effect]]:
        return state, []

    def _leave_after(self, state: Running, event: LeaveRequested, now: float) -> tuple[State, list[Effect]]:
        return self._begin_drain(
            Draining(event.host, SIGNALED, self.grace, now + self.grace), "training moves"
        )

    def _drain(self, state: Running, event: DrainRequested, now: float) -> tuple[State, list[Effect]]:
        until, host = now + event.seconds, self.hosts[0] if event.host is None else event.host
        draining = Draining(host, event.why, event.seconds, until, event.stays_out)
        return self._begin_drain(draining, "clients move")

    def _begin_drain(self, draining: Draining, movers: str) -> tuple[State, list[Effect]]:
        name, seconds = self.host_name(draining.host), f"for up to {draining.seconds:.0f} seconds"
        if self._delays:
            text = f"{name} is leaving: {draining.why}; its island goes on {seconds} while {movers} off it"
        else:
            text = f"{self._leaves(draining.host, draining.why)}; its arrays can be read {seconds}"
        return draining, [Log(logging.WARNING, text)]

    def _hasten(self, state: Draining, event: LeaveRequested, now: float) -> tuple[State, list[Effect]]:
        # Another host of the island received the signal, too; or one of an island that is drained.
        return dataclasses.replace(state, deadline=min(state.deadline, now + self.grace)), []

    def _terminate(self, state: Draining, event: GangDrained, now: float) -> tuple[State, list[Effect]]:
        why, until = state.why + event.unfinished, now + END_SECONDS
        hosts = frozenset(self.hosts)
        return Terminating(state.host, why, hosts, until, state.stays_out), [RequestExit(self.key)]

    def _note_exit(self, state: Terminating, event: HostLost, now: float) -> tuple[State, list[Effect]]:
        left = state.left - {event.host}
        return (dataclasses.replace(state, left=left), []) if left else self._leave(state, event, now)

    def _leave(self, state: Terminating, event: GangEvent, now: float) -> tuple[State, list[Effect]]:
        text = f"{self.host_name(state.host)} has left: {state.why}"
        return self._stay_out(text) if state.stays_out else self._restart(text, now)

    def _lose(self, state: State, event: HostLost, now: float) -> tuple[State, list[Effect]]:
        has_done_a_step = any(pulse.progressed > self._began for pulse in self.pulses.values())
        # Workers that have done a step, leave, were there for long without steps, or were ended by a program
        # that is charged with it, were well: the count of restarts starts again.
        is_well = (
            has_done_a_step
            or event.is_charged
            or isinstance(state, Draining)
            or now - self._began > START_SECONDS
        )
        text = f"{self.host_name(event.host)} is lost: {event.why}"
        if isinstance(state, Draining) and state.stays_out:
            return self._stay_out(text)
        restarts, cut_since = (0, None) if is_well else (self._restarts, self._cut_since)
        if event.is_cut:
            # A network that does not heal is bounded by time.
            cut_since = now if cut_since is None else cut_since
        elif not is_well:
            restarts += 1
        return self._restart(text, now, restarts, cut_since)

    def _stay_out(self, text: str) -> tuple[State, list[Effect]]:
        return Drained(lost(text)), [Log(logging.INFO, text)]

    def _note_termination(
        self, state: Drained, event: GangTerminated, now: float
    ) -> tuple[State, list[Effect]]:
        return dataclasses.replace(state, is_terminated=True), []

    def _return(self, state: Drained, event: ReturnRequested, now: float) -> tuple[State, list[Effect]]:
        restarting = Restarting(state.failure, now + self._restart_seconds, 0, None, was_out=True)
        # Otherwise the start begins with the end of the processes.
        start: list[Effect] = [RestartGang(self.key, START_SECONDS)] if state.is_terminated else []
        return restarting, [Log(logging.INFO, f"{self.name} returns"), *start]

    def _restart(
        self, text: str, now: float, restarts: int = 0, cut_since: float | None = None
    ) -> tuple[State, list[Effect]]:
        until = now + self._restart_seconds
        return Restarting(lost(text), until, restarts, cut_since), [Log(logging.ERROR, text)]

    def _start(self, state: Restarting, event: GangTerminated, now: float) -> tuple[State, list[Effect]]:
        if state.restarts > MAX_RESTARTS:
            why = f"it is not restarted, because it was lost {MAX_RESTARTS} times before it had done a step"
            return self._give_up(state, why)
        if state.cut_since is not None and now - state.cut_since > self._restart_seconds:
            seconds = now - state.cut_since
            why = f"it is not restarted, because it was cut off again and again for {seconds:.0f} seconds"
            return self._give_up(state, why)
        return state, [Log(logging.INFO, f"{self.name} is restarting"), RestartGang(self.key, _FIRST_CONTACT)]

    def _start_failed(
        self, state: Restarting, event: GangStartFailed, now: float
    ) -> tuple[State, list[Effect]]:
        again = now + _PAUSES[min(state.tries, len(_PAUSES) - 1)]
        if event.is_final or again > state.until:
            return self._give_up(state, event.why)
        text = f"{self.name}: {event.why}; retrying for {state.until - now:.0f} seconds"
        # Warns the user once.
        level = logging.INFO if state.tries else logging.WARNING
        before = dataclasses.replace(state, tries=state.tries + 1)
        return Pausing(state.failure, before, again), [Log(level, text)]

    def _try_again(self, state: Pausing, event: RestartDue, now: float) -> tuple[State, list[Effect]]:
        # Each try has at least the time of the first one, even beyond the deadline.
        left = max(_FIRST_CONTACT, state.before.until - now)
        seconds = min(START_SECONDS, _FIRST_CONTACT * 2**state.before.tries, left)
        return state.before, [RestartGang(self.key, seconds)]

    def _give_up(self, state: Restarting, why: str) -> tuple[State, list[Effect]]:
        if state.was_out:
            return Drained(state.failure, is_terminated=True), [Log(logging.ERROR, f"{self.name}: {why}")]
        return Dead(lost(f"{state.failure.text}; {why}")), [Log(logging.ERROR, f"{self.name}: {why}")]

    def _replace(self, state: Restarting, event: GangStarted, now: float) -> tuple[State, list[Effect]]:
        replaced = Replaced(state.failure, state.restarts, state.cut_since)
        return replaced, [AttachGang(self._next_key()), Log(logging.INFO, f"{self.name} is back")]

    def _close(self, state: State, event: GangClosed, now: float) -> tuple[State, list[Effect]]:
        return Dead(self.closed_failure(event.ending)), []

    def _close_lost(
        self, state: Restarting | Pausing | Drained, event: GangClosed, now: float
    ) -> tuple[State, list[Effect]]:
        return Dead(state.failure), []


_Act = Callable[[Gang, Any, Any, float], tuple[State, list[Effect]]]

TRANSITIONS: Mapping[tuple[type[State], type[GangEvent]], _Act] = {
    (Running, LeaveRequested): Gang._leave_after,
    (Running, DrainRequested): Gang._drain,
    (Running, HostLost): Gang._lose,
    (Running, GangClosed): Gang._close,
    (Draining, LeaveRequested): Gang._hasten,
    (Draining, GangDrained): Gang._terminate,
    (Draining, HostLost): Gang._lose,
    (Draining, GangClosed): Gang._close,
    (Terminating, LeaveRequested): Gang._stay,
    # The exit was permitted: it is not a loss, whatever reports it.
    (Terminating, HostLost): Gang._note_exit,
    (Terminating, ExitOverdue): Gang._leave,
    (Terminating, GangClosed): Gang._close,
    (Restarting, LeaveRequested): Gang._stay,
    (Restarting, HostLost): Gang._stay,
    (Restarting, GangTerminated): Gang._start,
    (Restarting, GangStarted): Gang._replace,
    (Restarting, GangStartFailed): Gang._start_failed,
    (Restarting, GangClosed): Gang._close_lost,
    (Pausing, LeaveRequested): Gang._stay,
    (Pausing, HostLost): Gang._stay,
    (Pausing, RestartDue): Gang._try_again,
    (Pausing, GangClosed): Gang._close_lost,
    (Drained, LeaveRequested): Gang._stay,
    (Drained, HostLost): Gang._stay,
    (Drained, GangTerminated): Gang._note_termination,
    (Drained, ReturnRequested): Gang._return,
    (Drained, GangClosed): Gang._close_lost,
    (Dead, LeaveRequested): Gang._stay,
    (Dead, HostLost): Gang._stay,
    # It was closed while it was terminated, or restarted.
    (Dead, GangTerminated): Gang._stay,
    (Dead, GangStarted): Gang._stay,
    (Dead, GangStartFailed): Gang._stay,
    (Dead, GangClosed): Gang._stay,
}
"""The transition of a state by an event. Events without a row cannot occur: `Replaced` accepts none, since
nothing listens to replaced workers."""

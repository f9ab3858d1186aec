"""Clients that share the islands of a simulated cluster: the scheduler chooses the next step."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from collections.abc import Callable, Generator, Iterator, Sequence

from simulated_clients import Client, SimulatedClients, SimulatedHandle, verdict
from simulated_cluster import SimulatedCluster
from simulated_messages import Call, SimulatedProgram

from pathways.runtime.control.effects import Effect, GangDraining, GangLeaving, GangLost
from pathways.runtime.control.gang import Draining, Gang
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.control.records.events import DrainRequested, GangKey
from pathways.runtime.control.records.replies import HostRequest
from pathways.runtime.control.records.step import SESSION_BITS, Step
from pathways.runtime.service.sharing.places import MAX_UNFINISHED
from pathways.runtime.service.sharing.scheduler_events import (
    CallFinished,
    ClientJoined,
    ClientLeft,
    ClientMoved,
    DisconnectClient,
    DispatchRequest,
    FreeClientArrays,
    IslandStepDone,
    IssueStep,
    OrderedRequest,
    QueuedStep,
    RefuseStep,
    WorkSubmitted,
)


class _SubmittedStep(QueuedStep):
    """Step that a session has submitted.

    Attributes:
      is_spoiled: whether an argument is spoiled, which its session knows.
      has_ended: whether it will not run.
    """

    def __init__(
        self,
        session: int,
        number: int,
        simulated: SimulatedProgram,
        gangs: dict[int, Gang],
        taken: dict[int, list[SimulatedHandle]],
        outputs: list[SimulatedHandle],
    ) -> None:
        super().__init__(
            session,
            number,
            simulated.salt % 3,
            {island: tuple(handle.number for handle in taken[island]) for island in gangs},
            {island: tuple(h.number for h in outputs if h.gang is gang) for island, gang in gangs.items()},
            starts={island: gang.key.start for island, gang in gangs.items()},
            program="f",
            hosts=[host for gang in gangs.values() for host in gang.hosts],
        )
        self.simulated = simulated
        self.gangs = gangs
        self.taken = taken
        self.outputs = outputs
        self.is_spoiled = False
        self.has_ended = False


@dataclasses.dataclass(eq=False)
class _PendingDispatch:
    """Ordered request of a session; `begin` sends it when it is dispatched, which sets `dispatch`."""

    begin: Callable[[DispatchRequest], None]
    dispatch: DispatchRequest | None = None
    has_ended: bool = False


class SimulatedSessions(SimulatedClients):
    """Clients in sessions that share a cluster.

    Args:
      cluster: the cluster.
      count: the number of sessions.
    """

    def __init__(self, cluster: SimulatedCluster, count: int) -> None:
        super().__init__(cluster)
        self._numbers = [itertools.count((session + 1) << SESSION_BITS | 1) for session in range(count)]
        self._session_of: dict[int, int] = {}
        self._issued: dict[int, _SubmittedStep] = {}
        # Arrays that depend on spoiled ones.
        self._spoiled: set[int] = set()
        self._pending: dict[int, list[_SubmittedStep | _PendingDispatch]] = {n: [] for n in range(count)}
        # Islands that a session has moved off.
        self._moved: set[tuple[int, GangKey]] = set()
        self._movers: dict[GangKey, frozenset[int]] = {}
        self._chance = random.Random(f"{cluster.shape.seed} moves")
        cluster.carry_out_for_clients = self._carry_out
        cluster.note_done = self._note_done
        for session in range(count):
            cluster.schedule(ClientJoined(session))

    def leave(self, pick: int) -> None:
        """Ends a session: its arrays are freed, and its pending requests are dropped."""
        session = pick % len(self._pending)
        if session not in self.core.scheduler.clients:
            return
        for handle in [handle for handle in self.held if self._session_of[handle.number] == session]:
            self.held.remove(handle)
            handle.is_held = False
        for request in self._pending[session]:
            request.has_ended = True
        self.cluster.schedule(ClientLeft(session))

    def drain(self, pick: int, seconds: float) -> None:
        """Drains an island; most sessions move off it."""
        gang = self.core.gangs[pick % len(self.core.gangs)]
        movers = frozenset(self.core.scheduler.clients)
        self.cluster.handle(DrainRequested(gang.key, "drained", seconds, True, movers))

    def _move(self, session: int, gang: Gang) -> None:
        """Has a session free all that it has on an island, and use it no more."""
        if session not in self.core.scheduler.clients or gang.failure is not None:
            return
        self._moved.add((session, gang.key))
        for handle in [*self.held]:
            if handle.gang is gang and self._session_of[handle.number] == session:
                self.drop(self.held.index(handle))
        self.cluster.schedule(ClientMoved(session, *gang.key))

    def _check_open(self, key: GangKey) -> None:
        """Checks that an island accepts steps until all sessions have moved off it, or its time is over."""
        if isinstance(self.core.gangs[key.island].state, Draining):
            connected = self._movers.get(key, frozenset()).intersection(self.core.scheduler.clients)
            left = [session for session in connected if (session, key) not in self._moved]
            assert not left, f"{key} accepts nothing more, and sessions {left} have not moved"

    def _check_left(self, key: GangKey) -> None:
        """Checks that an island that all have moved off has left with nothing."""
        gang = self.core.gangs[key.island]
        if self.core.movers(key) or not self._was_drained(gang):
            return
        self.outcomes["drained with nothing"] += 1
        assert not self.core.steps.of(gang), f"{gang} has left with {self.core.steps.of(gang)}"
        kept = [handle.number for handle in self.held if handle.gang is gang]
        assert not kept, f"{gang} has left with {kept}"

    def _is_over(self, why: str) -> bool:
        """Returns whether the island that refuses a step does so since its time is over."""
        leaving = [gang for gang in self.core.gangs if gang.leaving is not None and gang.leaving.text == why]
        return not any(isinstance(gang.state, Draining) for gang in leaving)

    @staticmethod
    def _was_drained(gang: Gang) -> bool:
        return gang.failure is not None and gang.failure.text.endswith("has left: drained")

    # Actions of clients, see `SimulatedClients`.

    def run(self, program: SimulatedProgram, picks: Sequence[int]) -> Client:
        """Submits a step, and waits for all its arrays."""
        gangs = yield from self._current(program)
        session = program.salt % len(self._pending)
        client = self.core.scheduler.clients.get(session)
        if gangs is None or client is None:
            return
        if client.unfinished >= MAX_UNFINISHED:
            yield lambda: client.unfinished < MAX_UNFINISHED
        if self.core.scheduler.clients.get(session) is not client or any(
            self.core.gangs[island] is not gang or (session, gang.key) in self._moved
            for island, gang in gangs.items()
        ):
            self.outcomes["submitted too late"] += 1
            return
        taken = self._taken(session, gangs, picks)
        outputs = [*self._new_outputs(session, program, gangs, taken)]
        step = _SubmittedStep(session, next(self._numbers[session]), program, gangs, taken, outputs)
        self.held += outputs
        self._session_of.update(dict.fromkeys([handle.number for handle in outputs], session))
        self._pending[session].append(step)
        self.cluster.schedule(WorkSubmitted(step))
        yield lambda: step.is_issued or step.has_ended
        self._pending[session].remove(step)
        if not step.is_issued:
            self.outcomes["not issued"] += 1
            for handle in outputs:
                if handle.is_held:
                    self.held.remove(handle)
                    handle.is_held = False
            return
        if step.is_spoiled:
            self.outcomes["argument spoiled"] += 1
            for handle in outputs:
                if handle.is_held:
                    self.drop(self.held.index(handle))
            yield step.is_settled
            self.verdicts[step] = verdict(step)
            return
        yield from self._watch(step, outputs)

    def call(self, island: int, salt: int, picks: Sequence[int], seconds: float) -> Client:
        """Requests a call of a function, and waits for its values."""
        gang = self.core.gangs[island % len(self.core.gangs)]
        session = salt % len(self._pending)
        has_moved = (session, gang.key) in self._moved
        if gang.problem is not None or has_moved or session not in self.core.scheduler.clients:
            self.outcomes["call not begun"] += 1
            return
        taken = self._taken(session, {gang.key.island: gang}, picks)[gang.key.island]
        arguments = tuple(handle.number for handle in taken)
        hosts = gang.hosts[salt % len(gang.hosts) :]
        raises = salt % 5 == 0
        begun: list[Step] = []

        def begin(dispatch: DispatchRequest) -> None:
            # The call may have been lost with its island since it was issued.
            if dispatch.why is None and gang.failure is None:
                call = self.core.steps.get(dispatch.item.number)
                assert call is not None, f"call {dispatch.item.number} is dispatched, and is not issued"
                call.read([handle.step for handle in taken])
                begun.append(call)
                for host in hosts:
                    self.cluster.send(host, "steps", Call(call.number, salt, arguments, seconds, raises))

        item = OrderedRequest(
            session,
            gang.key.island,
            arguments=arguments,
            is_call=True,
            number=next(self._numbers[session]),
            name="m:f",
            hosts=hosts,
        )
        dispatch = yield from self._await_dispatch(item, begin)
        if dispatch is None or not begun:
            self.outcomes["call not begun"] += 1
            return
        (call,) = begun
        yield call.is_done
        if gang.failure is None:
            self.cluster.schedule(CallFinished(dispatch.item))
        yield call.is_settled
        try:
            call.check()
        except HostError as error:
            self.outcomes[f"call: {type(error).__name__}"] += 1
        else:
            assert not raises, f"{call} raises"
            self.outcomes["called"] += 1
        self.verdicts[call] = verdict(call)

    def fetch(self, pick: int, *, by_all: bool) -> Client:
        """Reads an array, from one of its hosts or from all, after all earlier requests are issued."""
        if not self.held:
            return
        handle = self.held[pick % len(self.held)]
        session, gang = self._session_of[handle.number], handle.gang
        if gang.failure is not None:
            self.outcomes["fetch refused"] += 1
            return
        hosts = gang.hosts if by_all else gang.hosts[:1]
        begun: list[HostRequest] = []

        def begin(dispatch: DispatchRequest) -> None:
            if dispatch.has_arguments and gang.failure is None:
                begun.append(self._send_fetch(handle, hosts))

        yield from self._await_dispatch(
            OrderedRequest(session, gang.key.island, arguments=(handle.number,)), begin
        )
        if not begun:
            self.outcomes["fetch not begun"] += 1
            return
        yield from self._check_fetched(handle, hosts, begun[0])

    def _depends_on_spoiled(self, handle: SimulatedHandle) -> bool:
        """See `SimulatedClients._depends_on_spoiled`."""
        return handle.number in self._spoiled

    def drop(self, pick: int) -> None:
        """Frees an array."""
        handle = self.held.pop(pick % len(self.held)) if self.held else None
        if handle is not None:
            handle.is_held = False
            session = self._session_of[handle.number]
            if handle.gang.failure is None:
                item = OrderedRequest(session, handle.gang.key.island, frees=(handle.number,))
                self.cluster.schedule(WorkSubmitted(item))

    def check_end(self) -> None:
        """Checks that the scheduler holds no step or slot that no client waits for."""
        scheduler = self.core.scheduler
        for client in scheduler.clients.values():
            assert not client.unfinished, f"session {client.number} has {client.unfinished} unfinished steps"
            assert not client.queued, f"session {client.number} has {client.queued} steps in its queues"
        for island in range(len(self.core.gangs)):
            assert not scheduler.in_flight(island), f"slots of island {island} are not free"

    # The parts of actions.

    def _taken(
        self, session: int, gangs: dict[int, Gang], picks: Sequence[int]
    ) -> dict[int, list[SimulatedHandle]]:
        mine = [handle for handle in self.held if self._session_of[handle.number] == session]
        all_held, self.held = self.held, mine
        try:
            return self._arguments(gangs, picks, None)
        finally:
            self.held = all_held

    def _new_outputs(
        self,
        session: int,
        program: SimulatedProgram,
        gangs: dict[int, Gang],
        taken: dict[int, list[SimulatedHandle]],
    ) -> Iterator[SimulatedHandle]:
        expected = program.expected(
            {island: tuple(handle.expected for handle in own) for island, own in taken.items()}
        )
        first = next(self._numbers[session])
        for _ in range(program.outputs):
            next(self._numbers[session])
        # Until it is issued, the step that computes them is unknown.
        unknown = Step("f", 0, ())
        for island, gang in gangs.items():
            for position, value in enumerate(expected[island]):
                yield SimulatedHandle(gang, first + position, unknown, value, position)

    def _await_dispatch(
        self, item: OrderedRequest, begin: Callable[[DispatchRequest], None]
    ) -> Generator[Callable[[], bool], None, DispatchRequest | None]:
        """Waits until a request is dispatched; returns None when its session ends before."""
        pending = _PendingDispatch(begin)
        self._pending[item.client].append(pending)
        self.cluster.schedule(WorkSubmitted(dataclasses.replace(item, context=pending)))
        yield lambda: pending.dispatch is not None or pending.has_ended
        self._pending[item.client].remove(pending)
        return pending.dispatch

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case IssueStep(_SubmittedStep() as step):
                self._issue(step)
            case DispatchRequest(item, frees):
                self._free(item.island, frees)
                if item.context is not None:
                    item.context.begin(effect)
                    item.context.dispatch = effect
            case RefuseStep(_SubmittedStep() as step, why):
                step.has_ended = True
                assert "is leaving: drained" not in why or self._is_over(why), f"{step}: {why}"
            case FreeClientArrays(_, island, arrays):
                self._free(island, arrays)
            case GangDraining(key):
                self._movers[key] = self.core.movers(key)
                for session in self.core.movers(key):
                    if self._chance.random() < 0.8:
                        gang = self.core.gangs[key.island]
                        move = functools.partial(self._move, session, gang)
                        self.cluster.time.after(self._chance.uniform(0.0, 1.0), move)
            case GangLeaving(key):
                self._check_open(key)
            case GangLost(key, is_out=True):
                self._check_left(key)
            case DisconnectClient(number, why):
                raise AssertionError(f"session {number} is disconnected: {why}")

    def _free(self, island: int, arrays: Sequence[int]) -> None:
        for number in arrays:
            self.core.gangs[island].unused.add(number)

    def _issue(self, step: _SubmittedStep) -> None:
        taken = [handle for own in step.taken.values() for handle in own]
        step.is_spoiled = any(h.number in self._spoiled or _is_spoiled(h.step) for h in taken)
        if step.is_spoiled:
            self._spoiled.update(handle.number for handle in step.outputs)
        step.read([handle.step for handle in taken])
        for gang in step.gangs.values():
            self._check_slots(step, gang)
        for handle in step.outputs:
            handle.step = step
        first = step.outputs[0].number if step.outputs else 0
        self._issued[step.number] = step
        self._send_run(step, step.simulated, step.gangs, step.taken, first)
        self.verdicts[step] = None

    def _check_slots(self, step: Step, gang: Gang) -> None:
        """Checks that there was room for a step: an island's slot is free once its hosts are done."""
        in_flight = [other for other in self._in_flight[gang] if not other.is_done(gang.hosts)]
        self._in_flight[gang] = [*in_flight, step]
        limit = self.cluster.shape.limits.ahead
        assert len(in_flight) < limit, f"{len(in_flight)} steps are in flight on {gang}, and {step}"

    def _note_done(self, gang: Gang, number: int) -> None:
        step = self._issued.get(number)
        if step is not None and step.is_done(gang.hosts):
            self.cluster.schedule(IslandStepDone(step, gang.key.island, 0.01))


def _is_spoiled(step: Step) -> bool:
    try:
        step.check_spoiled()
    except HostError:
        return True
    return False

"""Users who share the islands of a simulated cluster: the scheduler says whose step is next."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence

from simulated_clients import Client, SimulatedClients, SimulatedHandle, verdict
from simulated_cluster import SimulatedCluster
from simulated_messages import Call, SimulatedProgram

from pathways.runtime.control.effects import Effect
from pathways.runtime.control.gang import Gang
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.control.records.replies import HostRequest
from pathways.runtime.control.records.step import SESSION_BITS, Step
from pathways.runtime.control.sharing.scheduler import MOST_UNFINISHED
from pathways.runtime.control.sharing.scheduler_events import (
    CallFinished,
    ClientJoined,
    ClientLeft,
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


class _AskedStep(QueuedStep):
    """A step that a session has asked for.

    Attributes:
      is_spoiled: whether something that it takes is spoiled, which its session knows.
      has_ended: whether it will not run.
    """

    def __init__(
        self,
        session: int,
        number: int,
        simulated: SimulatedProgram,
        gangs: dict[int, Gang],
        taken: dict[int, list[SimulatedHandle]],
        made: list[SimulatedHandle],
    ) -> None:
        super().__init__(
            session,
            number,
            simulated.salt % 3,
            {island: tuple(handle.number for handle in taken[island]) for island in gangs},
            {island: tuple(h.number for h in made if h.gang is gang) for island, gang in gangs.items()},
            starts={island: gang.key.start for island, gang in gangs.items()},
            program="f",
            hosts=[host for gang in gangs.values() for host in gang.hosts],
        )
        self.simulated = simulated
        self.gangs = gangs
        self.taken = taken
        self.made = made
        self.is_spoiled = False
        self.has_ended = False


@dataclasses.dataclass(eq=False)
class _AskedTurn:
    """What a session has asked for that has an order; `begin` sends it at its turn, which is `turn` then."""

    begin: Callable[[DispatchRequest], None]
    turn: DispatchRequest | None = None
    has_ended: bool = False


class SimulatedSessions(SimulatedClients):
    """Sessions that share a cluster.

    Args:
      cluster: the cluster.
      count: how many sessions there are.
    """

    def __init__(self, cluster: SimulatedCluster, count: int) -> None:
        super().__init__(cluster)
        self._numbers = [itertools.count((session + 1) << SESSION_BITS | 1) for session in range(count)]
        self._session_of: dict[int, int] = {}
        self._issued: dict[int, _AskedStep] = {}
        # The arrays that are made of spoiled ones.
        self._spoiled: set[int] = set()
        self._unanswered: dict[int, list[_AskedStep | _AskedTurn]] = {n: [] for n in range(count)}
        cluster.carry_out_for_clients = self._carry_out
        cluster.note_done = self._note_done
        for session in range(count):
            cluster.schedule(ClientJoined(session))

    def leave(self, pick: int) -> None:
        """Ends a session: what it has is freed, and what it waits for is not wanted any more."""
        session = pick % len(self._unanswered)
        if session not in self.core.scheduler.clients:
            return
        for handle in [handle for handle in self.held if self._session_of[handle.number] == session]:
            self.held.remove(handle)
            handle.is_held = False
        for asked in self._unanswered[session]:
            asked.has_ended = True
        self.cluster.schedule(ClientLeft(session))

    # What they do, see `SimulatedClients`.

    def run(self, program: SimulatedProgram, picks: Sequence[int]) -> Client:
        """Asks for a step, and waits for all that it makes."""
        gangs = yield from self._current(program)
        session = program.salt % len(self._unanswered)
        client = self.core.scheduler.clients.get(session)
        if gangs is None or client is None:
            return
        if client.unfinished >= MOST_UNFINISHED:
            yield lambda: client.unfinished < MOST_UNFINISHED
        if self.core.scheduler.clients.get(session) is not client or any(
            self.core.gangs[island] is not gang for island, gang in gangs.items()
        ):
            self.outcomes["asked too late"] += 1
            return
        taken = self._taken(session, gangs, picks)
        made = [*self._made(session, program, gangs, taken)]
        step = _AskedStep(session, next(self._numbers[session]), program, gangs, taken, made)
        self.held += made
        self._session_of.update(dict.fromkeys([handle.number for handle in made], session))
        self._unanswered[session].append(step)
        self.cluster.schedule(WorkSubmitted(step))
        yield lambda: step.is_issued or step.has_ended
        self._unanswered[session].remove(step)
        if not step.is_issued:
            self.outcomes["not issued"] += 1
            for handle in made:
                if handle.is_held:
                    self.held.remove(handle)
                    handle.is_held = False
            return
        if step.is_spoiled:
            self.outcomes["argument spoiled"] += 1
            for handle in made:
                if handle.is_held:
                    self.drop(self.held.index(handle))
            yield step.is_settled
            self.verdicts[step] = verdict(step)
            return
        yield from self._watch(step, made)

    def call(self, island: int, salt: int, picks: Sequence[int], seconds: float) -> Client:
        """Asks for a call of a function, and waits for its values."""
        gang = self.core.gangs[island % len(self.core.gangs)]
        session = salt % len(self._unanswered)
        if gang.problem is not None or session not in self.core.scheduler.clients:
            self.outcomes["call not begun"] += 1
            return
        taken = self._taken(session, {gang.key.island: gang}, picks)[gang.key.island]
        takes = tuple(handle.number for handle in taken)
        hosts = gang.hosts[salt % len(gang.hosts) :]
        raises = salt % 5 == 0
        begun: list[Step] = []

        def begin(turn: DispatchRequest) -> None:
            # It may be lost with its island since it was issued.
            if turn.why is None and gang.failure is None:
                call = self.core.steps.get(turn.item.number)
                assert call is not None, f"call {turn.item.number} has its turn, and is not issued"
                call.read([handle.step for handle in taken])
                begun.append(call)
                for host in hosts:
                    self.cluster.send(host, "steps", Call(call.number, salt, takes, seconds, raises))

        item = OrderedRequest(
            session,
            gang.key.island,
            takes=takes,
            is_call=True,
            number=next(self._numbers[session]),
            name="m:f",
            hosts=hosts,
        )
        turn = yield from self._turn(item, begin)
        if turn is None or not begun:
            self.outcomes["call not made"] += 1
            return
        (call,) = begun
        yield call.is_done
        if gang.failure is None:
            self.cluster.schedule(CallFinished(turn.item))
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
        """Reads an array, of one of its hosts or of all, when all is issued that was asked for before."""
        if not self.held:
            return
        handle = self.held[pick % len(self.held)]
        session, gang = self._session_of[handle.number], handle.gang
        if gang.failure is not None:
            self.outcomes["fetch refused"] += 1
            return
        hosts = gang.hosts if by_all else gang.hosts[:1]
        begun: list[HostRequest] = []

        def begin(turn: DispatchRequest) -> None:
            if turn.is_there and gang.failure is None:
                begun.append(self._send_fetch(handle, hosts))

        yield from self._turn(OrderedRequest(session, gang.key.island, takes=(handle.number,)), begin)
        if not begun:
            self.outcomes["fetch not begun"] += 1
            return
        yield from self._check_fetched(handle, hosts, begun[0])

    def _is_spoiled(self, handle: SimulatedHandle) -> bool:
        """See `SimulatedClients._is_spoiled`."""
        return handle.number in self._spoiled

    def drop(self, pick: int) -> None:
        """Lets go of an array."""
        handle = self.held.pop(pick % len(self.held)) if self.held else None
        if handle is not None:
            handle.is_held = False
            session = self._session_of[handle.number]
            if handle.gang.failure is None:
                item = OrderedRequest(session, handle.gang.key.island, frees=(handle.number,))
                self.cluster.schedule(WorkSubmitted(item))

    def check_end(self) -> None:
        """Checks that the scheduler has nothing that nobody waits for."""
        scheduler = self.core.scheduler
        for client in scheduler.clients.values():
            assert not client.unfinished, f"session {client.number} has {client.unfinished} unfinished steps"
            assert not client.queued, f"session {client.number} has {client.queued} steps in its lines"
        for island in range(len(self.core.gangs)):
            assert not scheduler.under_way(island), f"slots of island {island} are not free"

    # How they do it.

    def _taken(
        self, session: int, gangs: dict[int, Gang], picks: Sequence[int]
    ) -> dict[int, list[SimulatedHandle]]:
        mine = [handle for handle in self.held if self._session_of[handle.number] == session]
        all_held, self.held = self.held, mine
        try:
            return self._arguments(gangs, picks)
        finally:
            self.held = all_held

    def _made(
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
        # Until it is issued nothing is known of what makes them.
        nothing = Step("f", 0, ())
        for island, gang in gangs.items():
            for position, value in enumerate(expected[island]):
                yield SimulatedHandle(gang, first + position, nothing, value, position)

    def _turn(
        self, item: OrderedRequest, begin: Callable[[DispatchRequest], None]
    ) -> Generator[Callable[[], bool], None, DispatchRequest | None]:
        """Waits for the turn of something; None when its session ends before."""
        asked = _AskedTurn(begin)
        self._unanswered[item.client].append(asked)
        self.cluster.schedule(WorkSubmitted(dataclasses.replace(item, what=asked)))
        yield lambda: asked.turn is not None or asked.has_ended
        self._unanswered[item.client].remove(asked)
        return asked.turn

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case IssueStep(_AskedStep() as step):
                self._issue(step)
            case DispatchRequest(item, frees):
                self._free(item.island, frees)
                if item.what is not None:
                    item.what.begin(effect)
                    item.what.turn = effect
            case RefuseStep(_AskedStep() as step):
                step.has_ended = True
            case FreeClientArrays(_, island, arrays):
                self._free(island, arrays)
            case DisconnectClient(number, why):
                raise AssertionError(f"session {number} is expelled: {why}")

    def _free(self, island: int, arrays: Sequence[int]) -> None:
        for number in arrays:
            self.core.gangs[island].unused.add(number)

    def _issue(self, step: _AskedStep) -> None:
        taken = [handle for own in step.taken.values() for handle in own]
        step.is_spoiled = any(h.number in self._spoiled or _is_spoiled(h.step) for h in taken)
        if step.is_spoiled:
            self._spoiled.update(handle.number for handle in step.made)
        step.read([handle.step for handle in taken])
        for gang in step.gangs.values():
            self._check_slots(step, gang)
        for handle in step.made:
            handle.step = step
        first = step.made[0].number if step.made else 0
        self._issued[step.number] = step
        self._send_run(step, step.simulated, step.gangs, step.taken, first)
        self.verdicts[step] = None

    def _check_slots(self, step: Step, gang: Gang) -> None:
        """Checks that there was room for a step: where a part of an island is done, its slot is free."""
        under_way = [other for other in self._under_way[gang] if not other.is_done(gang.hosts)]
        self._under_way[gang] = [*under_way, step]
        most = self.cluster.shape.limits.ahead
        assert len(under_way) < most, f"{len(under_way)} steps are under way on {gang}, and {step}"

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

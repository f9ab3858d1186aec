"""Clients of a simulated cluster, who never see a wrong value."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Generator, Sequence

from simulated_cluster import SimulatedCluster
from simulated_messages import Call, FailedArray, Fetch, Free, Run, SimulatedProgram

from pathways.runtime.control.gang import Gang
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.control.records.replies import HostRequest
from pathways.runtime.control.records.step import FunctionCall, Step

ALONE = "alone"
"""Name of programs on one host of several."""

Client = Generator[Callable[[], bool]]
"""Generator of the conditions that a client waits for."""


@dataclasses.dataclass(eq=False)
class SimulatedHandle:
    """Array that a client holds.

    Attributes:
      gang: the workers that have it.
      number: its number.
      step: the step that computes it.
      expected: its right value.
      position: its index among the arrays that its island computes in that step.
      is_held: whether a client still holds it.
      alone: the rank of the only host that knows of it; None for all.
    """

    gang: Gang
    number: int
    step: Step
    expected: int
    position: int = 0
    is_held: bool = True
    alone: int | None = None

    @property
    def hosts(self) -> Sequence[int]:
        """The hosts that know of it."""
        return self.gang.hosts if self.alone is None else (self.gang.hosts[self.alone],)


class SimulatedClients:
    """Clients of a cluster.

    Attributes:
      held: the arrays that are held.
      outcomes: the outcomes of requests, and how often each occurred.
      verdicts: for each issued step its verdict when it was settled, or None before.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.core = cluster.core
        self.held: list[SimulatedHandle] = []
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.verdicts: dict[Step, str | None] = {}
        self._in_flight: dict[Gang, list[Step]] = collections.defaultdict(list)
        self._waiting: list[tuple[Client, Callable[[], bool]]] = []

    def start(self, client: Client) -> None:
        """Starts a client."""
        self._resume(client)
        self.resume_ready()

    def resume_ready(self) -> None:
        """Resumes all clients whose condition holds, in the order in which they came."""
        self.cluster.has_changed = True
        while self.cluster.has_changed:
            self.cluster.has_changed = False
            waiting, self._waiting = self._waiting, []
            for client, is_ready in waiting:
                if is_ready():
                    self.cluster.has_changed = True
                    self._resume(client)
                else:
                    self._waiting.append((client, is_ready))

    def count(self) -> int:
        """Returns the number of clients that wait."""
        return len(self._waiting)

    def _resume(self, client: Client) -> None:
        for is_ready in client:
            if not is_ready():
                self._waiting.append((client, is_ready))
                return

    # The actions of clients.

    def run(self, program: SimulatedProgram, picks: Sequence[int]) -> Client:
        """Issues a step, and waits for all its arrays."""
        gangs = yield from self._current(program)
        if gangs is None:
            return
        taken = self._arguments(gangs, picks, program.alone)
        if gangs and any(self._blocks(gang) for gang in gangs.values()):
            yield lambda: not any(self._blocks(gang) for gang in gangs.values())
        now = self.cluster.time.now
        for handles in taken.values():
            for handle in handles:
                # The array may have been dropped, or lost, while there was no room.
                if not handle.is_held or handle.gang.failure is not None:
                    self.outcomes["argument lost"] += 1
                    return
        number = self.core.take_numbers(1 + program.outputs)
        hosts = [host for gang in gangs.values() for host in _hosts_of(program, gang)]
        step = Step("f" if program.alone is None else ALONE, number, hosts, program.salt, now)
        try:
            before = [handle.step for handles in taken.values() for handle in handles]
            self.core.issue(step, [*gangs.values()], before)
        except HostError as error:
            self.outcomes[f"refused: {type(error).__name__}"] += 1
            return
        self._check_windows(step, gangs)
        outputs = self._send(step, program, gangs, taken)
        self.held += outputs
        self.verdicts[step] = None
        yield from self._watch(step, outputs)

    def call(self, island: int, salt: int, picks: Sequence[int], seconds: float) -> Client:
        """Calls a function on hosts of an island, with arrays that they have, and waits for its values."""
        gang = self.core.gangs[island % len(self.core.gangs)]
        if gang.problem is not None:
            self.outcomes["call not begun"] += 1
            return
        taken = self._arguments({gang.key.island: gang}, picks, None)[gang.key.island]
        hosts = gang.hosts[salt % len(gang.hosts) :]
        call = FunctionCall("m:f", self.core.take_numbers(), hosts, self.cluster.time.now)
        try:
            self.core.issue(call, [gang], [handle.step for handle in taken])
        except HostError as error:
            self.outcomes[f"call refused: {type(error).__name__}"] += 1
            return
        raises = salt % 5 == 0
        message = Call(call.number, salt, tuple(handle.number for handle in taken), seconds, raises)
        for host in hosts:
            self.cluster.send(host, "steps", message)
        self.verdicts[call] = None
        expected = hash((salt, *(handle.expected for handle in taken)))
        is_done = call.is_settled if self.core.has_multi_host_islands else call.is_done
        yield lambda: is_done() or call.has_cut_hosts()
        try:
            call.check()
        except HostError as error:
            self.outcomes[f"call: {type(error).__name__}"] += 1
        else:
            self.outcomes["called"] += 1
            assert not raises, f"{call} raises"
            values = [call.answers[host] for host in hosts]
            assert values == [expected] * len(hosts), f"the values of {call} are wrong: {values}"
        yield call.is_settled
        self.verdicts[call] = verdict(call)

    def fetch(self, pick: int, *, by_all: bool) -> Client:
        """Reads an array, from one of its hosts or from all."""
        if not self.held:
            return
        handle = self.held[pick % len(self.held)]
        if handle.gang.failure is not None:
            self.outcomes["fetch refused"] += 1
            return
        hosts = handle.hosts if by_all else handle.hosts[pick % len(handle.hosts) :][:1]
        yield from self._check_fetched(handle, hosts, self._send_fetch(handle, hosts))

    def _send_fetch(self, handle: SimulatedHandle, hosts: Sequence[int]) -> HostRequest:
        request = self.core.replies.create_request(hosts)
        for host in hosts:
            self.cluster.send(host, "steps", Fetch(request.number, handle.number))
        return request

    def _depends_on_spoiled(self, handle: SimulatedHandle) -> bool:
        """Returns whether the array depends on a spoiled one, which its step alone does not show."""
        return False

    def _check_fetched(self, handle: SimulatedHandle, hosts: Sequence[int], request: HostRequest) -> Client:
        """Waits for the values of an array from its hosts, and checks them."""
        yield request.is_done
        try:
            for _, failure in request.first_failure():
                raise failure.error()
            if self.core.has_multi_host_islands:
                yield handle.step.is_settled
                handle.step.check_spoiled()
        except HostError as error:
            self.outcomes[f"fetch: {type(error).__name__}"] += 1
            return
        if self._depends_on_spoiled(handle):
            self.outcomes["fetch of a spoiled array"] += 1
            return
        self.outcomes["fetched"] += 1
        for host in hosts:
            values = request.answers[host]
            assert values == [handle.expected] * 2, f"the array of {handle.step} from host {host} is wrong"

    def request_status(self) -> Client:
        """Requests the status of all hosts."""
        hosts = [host for gang in self.core.gangs for host in gang.hosts]
        request, effects = self.core.request_reports(hosts, self.cluster.time.now)
        self.cluster.carry_out("status", effects)
        yield request.is_done
        self._check_reports(request)
        self.outcomes["status"] += 1

    def drop(self, pick: int) -> None:
        """Frees an array."""
        if self.held:
            handle = self.held.pop(pick % len(self.held))
            handle.is_held = False
            if handle.alone is None:
                handle.gang.unused.add(handle.number)
            elif handle.gang.failure is None:
                self.cluster.send(*handle.hosts, "steps", Free((handle.number,)))

    # The parts of actions.

    def _current(
        self, program: SimulatedProgram
    ) -> Generator[Callable[[], bool], None, dict[int, Gang] | None]:
        islands = dict.fromkeys(program.route)
        gangs = self.core.gangs
        if any(gangs[island].is_replaced_soon() for island in islands):
            yield lambda: not any(gangs[island].is_replaced_soon() for island in islands)
        current = {island: gangs[island] for island in islands}
        if problem := next((gang.problem for gang in current.values() if gang.problem), None):
            self.outcomes[f"not begun: {problem.kind.__name__}"] += 1
            return None
        return current

    def _arguments(
        self, gangs: dict[int, Gang], picks: Sequence[int], alone: int | None
    ) -> dict[int, list[SimulatedHandle]]:
        taken: dict[int, list[SimulatedHandle]] = {}
        for n, (island, gang) in enumerate(gangs.items()):
            here = [handle for handle in self.held if handle.gang is gang and handle.alone == alone]
            mine = picks[n :: len(gangs)] if here else ()
            # More often recent arrays, which may still be computed.
            taken[island] = [here[-1 - pick % len(here) // (1 + pick % 3)] for pick in mine]
        return taken

    def _blocks(self, gang: Gang) -> bool:
        return gang.window.blocker() is not None

    def _check_windows(self, step: Step, gangs: dict[int, Gang]) -> None:
        for gang in gangs.values():
            in_flight = [other for other in self._in_flight[gang] if not other.is_done()]
            self._in_flight[gang] = [*in_flight, step]
            limit = self.cluster.shape.limits.ahead
            assert len(in_flight) < limit, f"{len(in_flight)} steps are in flight on {gang}, and {step}"
            # A loss and a drain consider these steps.
            steps = [other for other in self.core.steps.of(gang) if not other.is_unordered]
            assert steps == self._in_flight[gang], f"steps of {gang} differ"

    def _send(
        self,
        step: Step,
        program: SimulatedProgram,
        gangs: dict[int, Gang],
        taken: dict[int, list[SimulatedHandle]],
    ) -> list[SimulatedHandle]:
        self._send_run(step, program, gangs, taken, step.number + 1)
        values = {island: tuple(handle.expected for handle in taken[island]) for island in gangs}
        expected = program.expected(values)
        outputs = []
        for island, gang in gangs.items():
            outputs += [
                SimulatedHandle(gang, step.number + 1 + position, step, value, position, alone=program.alone)
                for position, value in enumerate(expected[island])
            ]
        return outputs

    def _send_run(
        self,
        step: Step,
        program: SimulatedProgram,
        gangs: dict[int, Gang],
        taken: dict[int, list[SimulatedHandle]],
        first: int,
    ) -> None:
        workers = {island: self.cluster.of_gang[gang.key] for island, gang in gangs.items()}
        for island, gang in gangs.items():
            numbers = tuple(handle.number for handle in taken[island])
            # Frees are for all hosts.
            free = gang.unused.take_all() if program.alone is None else ()
            run = Run(step.number, first, program, workers, numbers, free)
            for host in _hosts_of(program, gang):
                self.cluster.send(host, "steps", run)

    def _watch(self, step: Step, handles: list[SimulatedHandle]) -> Client:
        """Waits for each array, and checks its value."""
        for handle in handles:
            hosts = handle.hosts
            is_done = (
                step.is_settled
                if self.core.has_multi_host_islands
                else functools.partial(step.is_done, hosts)
            )
            yield lambda is_done=is_done, hosts=hosts: is_done() or step.has_cut_hosts(hosts)
            try:
                step.check(hosts, step.number + 1 + handle.position)
                handle.gang.check()
            except HostError as error:
                self.outcomes[type(error).__name__] += 1
                continue
            self.outcomes["good"] += 1
            for worker in self.cluster.of_gang[handle.gang.key]:
                if worker.host not in hosts:
                    continue
                found = worker.store.get(handle.number)
                is_right = found == handle.expected if handle.is_held else not isinstance(found, FailedArray)
                assert is_right or not worker.is_alive, f"the array of {step} on {worker} is wrong: {found}"
        yield step.is_settled
        self.verdicts[step] = verdict(step)

    def _check_reports(self, request: HostRequest) -> None:
        for host, reports in request.answers.items():
            for report in reports:
                assert report.bytes == request.number, f"host {host} answered another request"


def _hosts_of(program: SimulatedProgram, gang: Gang) -> Sequence[int]:
    return gang.hosts if program.alone is None else (gang.hosts[program.alone],)


def verdict(step: Step) -> str:
    """Returns whether a settled step is good, has failed or is spoiled."""
    assert step.is_settled()
    try:
        step.check_spoiled()
    except HostError:
        return "spoiled"
    try:
        step.check()
    except HostError:
        return "failed"
    return "good"

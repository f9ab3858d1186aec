"""Random clients share simulated islands: one order, windows, no step that never ends; and fair shares."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from simulated_sharing import DeviceTimers, SimulatedSharing, problem, unfairness

from examples import examples
from pathways.runtime.hosts.launch.options import MAX_AHEAD
from pathways.runtime.service.sharing import memory, places
from pathways.runtime.service.sharing import scheduler as schedulers
from pathways.runtime.service.sharing.places import Places
from pathways.runtime.service.sharing.scheduler import ScheduledClient, Scheduler
from pathways.runtime.service.sharing.scheduler_events import (
    ArrayArrived,
    CallFinished,
    ClientJoined,
    ClientLeft,
    DispatchRequest,
    FreeClientArrays,
    IslandJoined,
    IslandLeaving,
    IslandStepDone,
    IssueStep,
    OrderedRequest,
    QueuedStep,
    RefuseStep,
    RoundTripMeasured,
    WorkSubmitted,
)

SEEDS = examples(200)
FOUND = 50
"""Seeds within which each planted fault is found."""


def test_scheduler_keeps_its_rules_in_random_histories():
    assert [wrong for seed in range(SEEDS) if (wrong := problem(seed))] == []


class WithoutShortcut(Scheduler):
    """Scheduler in which each step goes through the queues."""

    def _is_blocked(self, client: ScheduledClient, step: QueuedStep) -> bool:
        return True


def decisions(seed: int, make: type[Scheduler]) -> list[tuple[float, list[str]]]:
    """Returns the decisions of a scheduler in a history, each time as a set: only islands have an order."""
    found = []

    class Recorded(make):
        def handle_all(self, events, now):
            effects = super().handle_all(events, now)
            found.append((now, sorted(map(repr, effects))))
            return effects

    SimulatedSharing(seed, Recorded).play()
    return found


def test_scheduler_decides_the_same_where_steps_skip_the_queues():
    for seed in range(examples(50)):
        assert decisions(seed, Scheduler) == decisions(seed, WithoutShortcut), seed


def test_scheduler_refuses_steps_that_need_refused_ones():
    """Refusals spread from island 1 over island 2 to island 0."""
    scheduler = Scheduler(3, ahead=1)
    scheduler.handle(ClientJoined(0, 1.0), 0.0)
    steps = [
        QueuedStep(0, number, 1, arguments, results, frozenset())
        for number, (arguments, results) in enumerate(
            [
                ({0: (), 1: (), 2: ()}, {0: (), 1: (), 2: ()}),
                ({1: (), 2: ()}, {1: (), 2: (10,)}),
                ({2: (10,)}, {2: (11,)}),
                ({0: (), 2: (11,)}, {0: (12,), 2: ()}),
                ({0: (12,)}, {0: ()}),
                ({0: ()}, {0: ()}),
            ]
        )
    ]
    for step in steps:
        scheduler.handle(WorkSubmitted(step), 0.0)
    effects = scheduler.handle(IslandLeaving(1, "island 1 leaves"), 0.0)
    assert [effect.step.number for effect in effects if isinstance(effect, RefuseStep)] == [1, 2, 3, 4]


def test_scheduler_holds_steps_for_the_operands_and_results_of_calls():
    scheduler = Scheduler(1, ahead=4)
    for client in range(2):
        scheduler.handle(ClientJoined(client, 1.0), 0.0)
    for array in (1, 2):
        scheduler.handle(ArrayArrived(0, 0, 0, array), 0.0)
    calls = [OrderedRequest(0, 0, arguments=(1,), results=(10 + n,), is_call=True) for n in range(2)]
    for call in calls:
        assert scheduler.handle(WorkSubmitted(call), 0.0) == [DispatchRequest(call, ())]
    beside = QueuedStep(0, 1, 1, {0: (1,)}, {0: ()}, donates={0: ()})
    takes = QueuedStep(0, 2, 1, {0: (10,)}, {0: ()})
    donates = QueuedStep(0, 3, 1, {0: (1, 2)}, {0: ()}, donates={0: (1,)})
    other = QueuedStep(1, 4, 1, {0: ()}, {0: ()})
    assert scheduler.handle(WorkSubmitted(beside), 0.0) == [IssueStep(beside)]
    scheduler.handle(IslandStepDone(beside, 0, 0.003), 0.0)
    assert scheduler.handle_all([WorkSubmitted(takes), WorkSubmitted(donates)], 0.0) == []
    assert scheduler.handle(WorkSubmitted(other), 0.0) == [IssueStep(other)]
    # The array exists and may be freed or fetched, which is not up to this queue.
    free = OrderedRequest(0, 0, frees=(11,))
    assert scheduler.handle(CallFinished(calls[0]), 0.0) == [IssueStep(takes)]
    assert scheduler.handle(WorkSubmitted(free), 0.0) == []
    assert scheduler.handle(CallFinished(calls[1]), 0.0) == [IssueStep(donates), DispatchRequest(free, (11,))]


def test_scheduler_frees_results_of_calls_in_flight():
    scheduler = Scheduler(1, ahead=4)
    scheduler.handle(ClientJoined(0, 1.0), 0.0)
    call = OrderedRequest(0, 0, results=(10, 11), is_call=True)
    free = OrderedRequest(0, 0, frees=(10,))
    scheduler.handle(WorkSubmitted(call), 0.0)
    assert scheduler.handle(WorkSubmitted(free), 0.0) == [DispatchRequest(free, (10,))]
    assert scheduler.handle(ClientLeft(0), 0.0) == [FreeClientArrays(0, 0, (11,))]
    assert scheduler.handle(CallFinished(call), 0.0) == []


def windows_are_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Places, "_has_room", lambda self, island, share: True)


def places_are_not_given_back(patch: pytest.MonkeyPatch) -> None:
    free = Places.free

    def forgetful(self: Places, step: QueuedStep, number: int) -> float:
        used = self.islands[number].used
        estimate = free(self, step, number)
        self.islands[number].used = used
        return estimate

    patch.setattr(Places, "free", forgetful)


def frees_pass_steps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Scheduler,
        "_submit_request",
        lambda self, item: self._effects.append(DispatchRequest(item, item.frees)),
    )


def new_steps_pass_earlier_ones(patch: pytest.MonkeyPatch) -> None:
    def hasty(self: Scheduler, client: ScheduledClient, step: QueuedStep) -> bool:
        return bool(client._call_results or client._call_arguments)

    patch.setattr(Scheduler, "_is_blocked", hasty)


def new_steps_pass_calls(patch: pytest.MonkeyPatch) -> None:
    def hasty(self: Scheduler, client: ScheduledClient, step: QueuedStep) -> bool:
        return any(client._queues[n] for n in step.islands)

    patch.setattr(Scheduler, "_is_blocked", hasty)


def arrays_are_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    see = Scheduler._check_ready

    def blind(self: Scheduler, client: object, step: QueuedStep) -> None:
        step._missing = 0
        see(self, client, step)

    patch.setattr(Scheduler, "_check_ready", blind)


def the_first_queue_is_enough(patch: pytest.MonkeyPatch) -> None:
    see = Scheduler._check_ready

    def hasty(self: Scheduler, client: object, step: QueuedStep) -> None:
        step._firsts = len(step.islands) if step._firsts else 0
        see(self, client, step)

    patch.setattr(Scheduler, "_check_ready", hasty)


def queues_outlive_clients(patch: pytest.MonkeyPatch) -> None:
    def leave(self: Scheduler, client: object) -> None:
        self.clients[client.number] = client

    patch.setattr(Scheduler, "_remove_client", leave)


def late_arrays_stay(patch: pytest.MonkeyPatch) -> None:
    arrive = Scheduler._add_array

    def keep(self: Scheduler, arrived: ArrayArrived) -> None:
        if arrived.client in self.clients:
            arrive(self, arrived)

    patch.setattr(Scheduler, "_add_array", keep)


def losses_refuse_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "_refuse_all", lambda self, client, island, why: None)


def a_gang_needs_room_on_one_island(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Places, "_fits_places", lambda self, step: True)


def steps_are_issued_twice(patch: pytest.MonkeyPatch) -> None:
    issue = Scheduler._issue

    def twice(self: Scheduler, step: QueuedStep, now: float) -> None:
        issue(self, step, now)
        if not step.number % 7:
            self._effects.append(IssueStep(step))

    patch.setattr(Scheduler, "_issue", twice)


def any_work_waits_after_the_second_step(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(places, "WORK_SECONDS", 1000.0)


def any_number_of_steps_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(places, "_MAX_IN_FLIGHT", 1000)


def quotas_have_no_limit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory.Quota, "fits", lambda self, island, more: True)


def pools_have_no_limit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Places, "_fits_pools", lambda self, step: True)


def memory_is_free_before_steps_in_flight_are_done(patch: pytest.MonkeyPatch) -> None:
    def free(self: memory.ClientMemory, island: int, arrays: Iterable[int]) -> None:
        for number in arrays:
            self._release(island, number)

    patch.setattr(memory.ClientMemory, "free", free)


def ready_steps_of_a_shared_quota_are_not_held_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "_hold_all_back", lambda self, quota: None)


def joined_islands_have_no_limit(patch: pytest.MonkeyPatch) -> None:
    add = Scheduler._add_island
    patch.setattr(Scheduler, "_add_island", lambda self, joined: add(self, IslandJoined(joined.island)))


def clients_have_any_number_of_steps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(schedulers, "MAX_UNFINISHED", 1000)


def new_programs_fill_the_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Places, "_is_too_early", lambda self, step: False)


def results_of_calls_are_available_at_once(patch: pytest.MonkeyPatch) -> None:
    see = Scheduler._check_ready

    def hasty(self: Scheduler, client: ScheduledClient, step: QueuedStep) -> None:
        client._call_results.clear()
        see(self, client, step)

    patch.setattr(Scheduler, "_check_ready", hasty)


def arguments_of_calls_are_donated(patch: pytest.MonkeyPatch) -> None:
    see = Scheduler._check_ready

    def hasty(self: Scheduler, client: ScheduledClient, step: QueuedStep) -> None:
        client._call_arguments.clear()
        see(self, client, step)

    patch.setattr(Scheduler, "_check_ready", hasty)


def ends_of_calls_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "_end_call", lambda self, call: None)


@pytest.mark.parametrize(
    "plant",
    [
        any_work_waits_after_the_second_step,
        any_number_of_steps_is_in_flight,
        quotas_have_no_limit,
        pools_have_no_limit,
        joined_islands_have_no_limit,
        memory_is_free_before_steps_in_flight_are_done,
        ready_steps_of_a_shared_quota_are_not_held_back,
        clients_have_any_number_of_steps,
        new_programs_fill_the_window,
        results_of_calls_are_available_at_once,
        arguments_of_calls_are_donated,
        ends_of_calls_are_ignored,
        new_steps_pass_earlier_ones,
        new_steps_pass_calls,
        windows_are_open,
        places_are_not_given_back,
        frees_pass_steps,
        arrays_are_not_waited_for,
        the_first_queue_is_enough,
        queues_outlive_clients,
        late_arrays_stay,
        losses_refuse_nothing,
        a_gang_needs_room_on_one_island,
        steps_are_issued_twice,
    ],
)
def test_scheduler_histories_find_planted_faults(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch):
    plant(monkeypatch)
    # Every sixth history has quotas.
    assert any(problem(seed) for seed in (*range(FOUND), *range(4, 800, 6)))


def test_scheduler_keeps_an_island_busy_after_steps_that_wait_for_another():
    timers = DeviceTimers((1,) * 10, islands=2)
    timers.keep_busy(8, (1,), 0.2, steps=4)
    timers.keep_busy(9, (0,), 0.003)
    for client in range(8):
        timers.keep_busy(client, (0, 1), 0.003, steps=4)
    timers.run(3)
    before = timers.busy[0]
    timers.run(4)
    assert timers.busy[0] - before >= 0.97 * 4


def test_scheduler_serves_random_clients_fairly():
    assert [wrong for seed in range(6) if (wrong := unfairness(seed))] == []


def idleness_earns_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(places, "IDLE_SECONDS", 1000.0)


def claims_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Places, "_may_pass", lambda self, step, now: True)


def nothing_passes_a_claim(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Places, "_backfill", lambda self, step, now: False)


@pytest.mark.parametrize("plant", [idleness_earns_all, claims_are_ignored, nothing_passes_a_claim])
def test_scheduler_histories_find_planted_unfairness(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch
):
    plant(monkeypatch)
    assert any(unfairness(seed) for seed in range(5))


@pytest.mark.parametrize("weights", [(1, 1, 1, 1), (1, 2, 4, 8)])
def test_scheduler_gives_shares_by_weight(weights):
    timers = DeviceTimers(weights)
    # The steps of clients differ.
    for client in range(4):
        timers.keep_busy(client, (0,), 0.003 * (1 + client % 2))
    timers.run(20)
    for client, weight in enumerate(weights):
        assert timers.served[client] == pytest.approx(20 * weight / sum(weights), rel=0.03)
    assert timers.busy[0] >= 0.99 * 20


def test_scheduler_starves_no_step_of_two_islands_and_idles_none():
    timers = DeviceTimers((1, 1, 1), islands=2)
    timers.keep_busy(0, (0,), 0.001)
    timers.keep_busy(1, (1,), 0.0013)
    timers.keep_busy(2, (0, 1), 0.010)
    timers.run(20)
    assert min(timers.busy) >= 0.95 * 20
    assert timers.served[2] / 2 == pytest.approx(10, rel=0.1)


@pytest.mark.parametrize(
    ("own", "other", "both", "steps"),
    [(0.2, 0.003, 0.003, 8), (0.2, 0.003, 0.2, 8), (0.02, 0.003, 0.003, 2), (0.003, 0.003, 0.01, 8)],
)
def test_scheduler_idles_no_island_for_a_step_that_waits_for_another(own, other, both, steps):
    timers = DeviceTimers((1, 1, 1), islands=2)
    for island in range(2):
        timers.handle(RoundTripMeasured(island, 0.0003))
    timers.keep_busy(0, (1,), own, steps)
    timers.keep_busy(1, (0,), other, steps)
    timers.keep_busy(2, (0, 1), both, steps)
    timers.run(20)
    assert min(timers.busy) >= 0.95 * 20


def test_scheduler_gives_shares_by_weight_on_two_islands():
    weights = (1, 2, 4, 8)
    timers = DeviceTimers(weights, islands=2)
    for client in range(4):
        timers.keep_busy(client, (0, 1), 0.003)
    timers.run(20)
    for client, weight in enumerate(weights):
        assert timers.served[client] == pytest.approx(40 * weight / sum(weights), rel=0.03)
    assert min(timers.busy) >= 0.99 * 20


def test_scheduler_limits_credit_of_idle_clients():
    timers = DeviceTimers((1, 1))
    timers.keep_busy(0, (0,), 0.003)
    timers.run(10)
    before = timers.served[0]
    timers.keep_busy(1, (0,), 0.003)
    timers.run(1)
    assert timers.served[0] - before >= 0.45


def test_scheduler_limits_credit_of_clients_that_waited_for_an_array():
    """A client that was stopped while it sent the array is one."""
    timers = DeviceTimers((1, 1))
    timers.submit(QueuedStep(1, 1000, 1, {0: (77,)}, {0: ()}, frozenset([77])), 0.003)
    timers.keep_busy(0, (0,), 0.003)
    timers.run(10)
    before = timers.served[0]
    timers.keep_busy(1, (0,), 0.003)
    timers.handle(ArrayArrived(1, 0, 0, 77))
    timers.run(1)
    assert timers.served[0] - before >= 0.45


def test_scheduler_issues_one_step_at_a_time_of_new_programs():
    """The times of new programs are unknown, and other clients would wait for all of them."""
    timers = DeviceTimers((1, 1))
    timers.keep_busy(0, (0,), 1.0, steps=32)
    assert timers.core.in_flight(0) == 1
    timers.keep_busy(1, (0,), 0.003, steps=1)
    timers.run(1.1)
    assert timers.served[1] == pytest.approx(0.003)
    assert timers.core.in_flight(0) == 2
    scheduler = Scheduler(1, ahead=MAX_AHEAD)
    scheduler.handle(ClientJoined(0, 1.0), 0.0)
    steps = [QueuedStep(0, number, number, {0: ()}, {0: ()}) for number in range(3)]
    for step in steps:
        scheduler.handle(WorkSubmitted(step), 0.0)
    for number, step in enumerate(steps[:-1]):
        assert scheduler.in_flight(0) == 1
        assert scheduler.handle(IslandStepDone(step, 0, 1.0), number + 1.0) == [IssueStep(steps[number + 1])]


def test_scheduler_expects_of_new_foreign_programs_what_others_of_their_client_took():
    scheduler = Scheduler(1, ahead=MAX_AHEAD)
    scheduler.handle(ClientJoined(0, 1.0), 0.0)
    steps = [QueuedStep(0, n, n, {0: ()}, {0: ()}, is_foreign=True) for n in range(8)]
    for step in steps[:4]:
        scheduler.handle(WorkSubmitted(step), 0.0)
    assert scheduler.in_flight(0) == 1
    scheduler.handle(IslandStepDone(steps[0], 0, 1e-4), 1.0)
    assert scheduler.in_flight(0) == 3
    # Two have their places; with the third, the work after the first is more than an island may have.
    scheduler.handle(IslandStepDone(steps[1], 0, 1.0), 2.0)
    for step in steps[4:]:
        scheduler.handle(WorkSubmitted(step), 2.0)
    assert scheduler.in_flight(0) == 3


def test_scheduler_issues_new_programs_of_all_clients():
    timers = DeviceTimers((1, 1, 1))
    for client in range(3):
        timers.keep_busy(client, (0,), 0.003)
    assert timers.core.in_flight(0) == 3


def test_scheduler_issues_nothing_of_clients_that_left():
    timers = DeviceTimers((1, 1))
    timers.keep_busy(0, (0,), 0.003)
    timers.handle(ClientLeft(0))
    assert 0 not in timers.core.clients
    assert timers.core.in_flight(0) <= 4

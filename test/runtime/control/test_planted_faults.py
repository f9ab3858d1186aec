"""Random histories find what is wrong: each fault that is planted here is found within some seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from histories import problem
from random_histories import random_history

from pathways.runtime.control import core as cores
from pathways.runtime.control.cluster_view import ClusterView
from pathways.runtime.control.core import ClusterCore
from pathways.runtime.control.gang import TRANSITIONS, Draining, Gang, Restarting, Terminating
from pathways.runtime.control.held_failures import HeldFailure, HeldFailures
from pathways.runtime.control.peer_reports import PeerReports
from pathways.runtime.control.records.errors import Failure
from pathways.runtime.control.records.events import GangKey, GangStartFailed, HostLost
from pathways.runtime.control.records.pending_frees import PendingFrees
from pathways.runtime.control.records.replies import HostRequest, PendingReplies
from pathways.runtime.control.records.step import FunctionCall, Step
from pathways.runtime.control.records.window import Window
from pathways.runtime.control.steps import IssuedSteps
from pathways.runtime.service.sharing.scheduler import Scheduler
from pathways.runtime.service.sharing.scheduler_events import IslandLeaving, IslandLost, IssueStep
from pathways.runtime.service.sharing.service_core import ServiceCore

SEEDS = 260
"""Seeds to try: as many as `test_histories.py` plays at least."""

Plant = Callable[[pytest.MonkeyPatch], None]


def loss_ends_no_requests(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PendingReplies, "lose", lambda self, hosts, failure: [])


def late_replies_go_to_the_next_request(patch: pytest.MonkeyPatch) -> None:
    receive = PendingReplies.receive

    def misled(
        self: PendingReplies, host: int, number: int, value: Any, *, is_last: bool = True
    ) -> HostRequest | None:
        if self.get(number) is None:
            number = next((n for n, other in self._requests.items() if host in other._pending), number)
        return receive(self, host, number, value, is_last=is_last)

    patch.setattr(PendingReplies, "receive", misled)


def requests_never_expire(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PendingReplies, "expire", lambda self, now: [])


def reports_of_earlier_workers_count(patch: pytest.MonkeyPatch) -> None:
    def gang(self: ClusterCore, key: GangKey) -> Gang:
        return self.gangs[key.island]

    patch.setattr(ClusterCore, "gang", gang)


def windows_have_room_too_early(patch: pytest.MonkeyPatch) -> None:
    def blocker(self: Window) -> Step | None:
        while self._steps and self._steps[0].is_done():
            self._steps.popleft()
        return self._steps[0] if len(self._steps) > self._limit else None

    patch.setattr(Window, "blocker", blocker)


def steps_of_a_lost_island_are_not_ended(patch: pytest.MonkeyPatch) -> None:
    lose = Step.lose

    def skips_one(self: Step, host: int, failure: Failure) -> bool:
        return host != min(self.hosts) and lose(self, host, failure)

    patch.setattr(Step, "lose", skips_one)


def steps_that_follow_are_not_spoiled(patch: pytest.MonkeyPatch) -> None:
    def spoil(self: IssuedSteps, gang: Gang, failure: Failure) -> None:
        for step in self._unsettled:
            if not step.is_settled() and not step.hosts.isdisjoint(gang.hosts):
                step.spoil(failure)

    patch.setattr(IssuedSteps, "_spoil", spoil)
    patch.setattr(Step, "follow", lambda self, before: None)


def results_are_shown_before_a_step_is_settled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Step, "is_settled", Step.is_done)


def a_permitted_exit_is_a_loss(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(TRANSITIONS, (Terminating, HostLost), Gang._lose)


def frees_are_lost(patch: pytest.MonkeyPatch) -> None:
    take = PendingFrees.take_all

    def once(self: PendingFrees[int]) -> tuple[int, ...]:
        return take(self)[:3]

    patch.setattr(PendingFrees, "take_all", once)


def a_failure_on_one_host_spares_its_island(patch: pytest.MonkeyPatch) -> None:
    handle = ClusterCore.handle

    def spared(self: ClusterCore, event: Any, now: float) -> list[Any]:
        if isinstance(event, HostLost) and "failed there" in event.why:
            return []
        return handle(self, event, now)

    patch.setattr(ClusterCore, "handle", spared)


def a_failure_of_one_host_alone_loses_its_island(patch: pytest.MonkeyPatch) -> None:
    fail = ClusterCore._fail

    def lost(self: ClusterCore, failure: HeldFailure, now: float) -> list[Any]:
        failure.step.hosts = frozenset(self.gangs[failure.gang.island].hosts)
        return fail(self, failure, now)

    patch.setattr(ClusterCore, "_fail", lost)


def failures_are_held_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeldFailures, "release", lambda self, now: [])


def values_for_lost_workers_are_not_cancelled(patch: pytest.MonkeyPatch) -> None:
    terminate = cores.TerminateGang
    patch.setattr(cores, "TerminateGang", lambda gang, cancelled: terminate(gang, {}))


def an_island_that_holds_arrays_may_end(patch: pytest.MonkeyPatch) -> None:
    """The island behaves well until then; its early exit shows in what clients read."""

    def drained(self: ClusterCore, gang: Gang, reports: Any, now: float) -> list[Any]:
        return (
            self._handle_gang_event(cores.GangDrained(gang.key), now)
            if isinstance(gang.state, Draining)
            else []
        )

    patch.setattr(ClusterCore, "_decide_drained", drained)


def one_report_alone_ends_another_host(patch: pytest.MonkeyPatch) -> None:
    def check(self: PeerReports, now: float) -> list[HostLost]:
        return [HostLost(of.gang, of.host, f"{by} does not reach it") for by, of in self._reports]

    patch.setattr(PeerReports, "check", check)


def starts_are_tried_once(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(TRANSITIONS, (Restarting, GangStartFailed), lambda gang, s, e, now: gang._give_up(s, e.why))


def calls_are_not_lost_with_their_island(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Window, "unfinished", lambda self: [step for step in self._steps if not step.is_done()])


def calls_do_not_follow_steps(patch: pytest.MonkeyPatch) -> None:
    """Calls that read a spoiled array may return wrong values."""
    patch.setattr(FunctionCall, "is_settled", Step.is_done)


def results_of_a_missed_input_are_good(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClusterCore, "_note_missed_input", lambda self, event: None)


def a_slot_is_kept_after_a_loss(patch: pytest.MonkeyPatch) -> None:
    lose = Scheduler._lose_island

    def keeps(self: Scheduler, lost: IslandLost) -> None:
        in_flight = self._places.islands[lost.island].in_flight
        kept = [*in_flight.items()]
        lose(self, lost)
        in_flight.update(kept[:1])

    patch.setattr(Scheduler, "_lose_island", keeps)


def steps_are_issued_after_an_island_has_closed(patch: pytest.MonkeyPatch) -> None:
    schedule = ServiceCore.schedule

    def deaf(self: ServiceCore, events: Any, now: float) -> list[Any]:
        return schedule(self, [e for e in events if not isinstance(e, IslandLeaving | IslandLost)], now)

    patch.setattr(ServiceCore, "schedule", deaf)


def sessions_are_issued_in_two_orders(patch: pytest.MonkeyPatch) -> None:
    schedule = ServiceCore.schedule

    def mixed(self: ServiceCore, events: Any, now: float) -> list[Any]:
        effects = schedule(self, events, now)
        return sorted(effects, key=lambda effect: -effect.step.client if isinstance(effect, IssueStep) else 1)

    patch.setattr(ServiceCore, "schedule", mixed)


def islands_close_before_steps_of_clients_that_have_moved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "has_queued", lambda self, island: False)


def islands_close_when_the_first_client_has_moved(patch: pytest.MonkeyPatch) -> None:
    def end_move(self: ServiceCore, client: int, key: GangKey) -> None:
        if key in self._movers:
            self._movers[key].clear()

    patch.setattr(ServiceCore, "_end_move", end_move)


def losses_of_joined_islands_spoil_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClusterView, "_add_gang", lambda self, gang: self.gangs.append(gang))


PLANTS: list[Plant] = [
    islands_close_before_steps_of_clients_that_have_moved,
    islands_close_when_the_first_client_has_moved,
    losses_of_joined_islands_spoil_nothing,
    a_slot_is_kept_after_a_loss,
    steps_are_issued_after_an_island_has_closed,
    sessions_are_issued_in_two_orders,
    results_of_a_missed_input_are_good,
    calls_are_not_lost_with_their_island,
    calls_do_not_follow_steps,
    one_report_alone_ends_another_host,
    starts_are_tried_once,
    loss_ends_no_requests,
    late_replies_go_to_the_next_request,
    requests_never_expire,
    reports_of_earlier_workers_count,
    windows_have_room_too_early,
    steps_of_a_lost_island_are_not_ended,
    steps_that_follow_are_not_spoiled,
    results_are_shown_before_a_step_is_settled,
    a_permitted_exit_is_a_loss,
    frees_are_lost,
    a_failure_of_one_host_alone_loses_its_island,
    a_failure_on_one_host_spares_its_island,
    values_for_lost_workers_are_not_cancelled,
    failures_are_held_for_ever,
]


def first_seed(plant: Plant) -> int | None:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        return next((seed for seed in range(SEEDS) if problem(random_history(seed)) is not None), None)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_histories_find_planted_faults(plant: Plant):
    assert first_seed(plant) is not None

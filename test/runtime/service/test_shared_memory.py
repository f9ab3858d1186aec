"""Quotas of clients whose steps allocate, consume, share and free arrays."""

from __future__ import annotations

import pytest

from pathways.runtime.service.sharing import scheduler as schedulers
from pathways.runtime.service.sharing.memory import DeviceLimits, Quota, SharedMemory, StepBytes
from pathways.runtime.service.sharing.scheduler import Scheduler
from pathways.runtime.service.sharing.scheduler_events import (
    ClientJoined,
    CollectMemory,
    DisconnectClient,
    MemoryCollected,
    QueuedStep,
    RefuseStep,
    WorkSubmitted,
)

STEP = "step"


def returns(*counts: int, allocated: int | None = None) -> dict[int, StepBytes]:
    """Returns the needs of a step on island 0 that returns arrays on device 0."""
    total = sum(counts) if allocated is None else allocated
    return {0: StepBytes(((0, total),), (), tuple(((0, count),) for count in counts))}


@pytest.fixture
def shared() -> SharedMemory:
    return SharedMemory([DeviceLimits(16, 4)], {"ann": 8})


def test_a_step_holds_what_it_allocates_and_frees_what_it_consumed_when_it_is_done(shared):
    ann = shared.join("ann")
    ann.add(0, 1, ((0, 3),))
    # Of 5 bytes, 3 are the memory of the donated argument.
    needs = returns(5, allocated=2)
    assert ann.fits(needs)
    ann.begin(STEP, needs, {0: [1]}, {0: [2]}, {0: [1]})
    assert ann.held(0) == {0: 5}
    ann.finish(STEP, 0)
    assert ann.held(0) == {0: 5}
    ann.free(0, [2])
    assert ann.held(0) == {}


def test_arrays_are_free_when_steps_in_flight_are_done(shared):
    ann = shared.join("ann")
    ann.add(0, 1, ((0, 6),))
    ann.begin(STEP, returns(), {0: [1]}, {0: []}, {})
    ann.free(0, [1])
    assert not ann.fits(returns(3))
    ann.finish(STEP, 0)
    assert ann.fits(returns(8))


def test_a_view_keeps_the_memory_of_its_arrays(shared):
    ann = shared.join("ann")
    ann.add(0, 1, ((0, 3),))
    view = {0: StepBytes((), (), (((0, 3),),), is_view=True)}
    ann.begin(STEP, view, {0: [1]}, {0: [2]}, {})
    ann.finish(STEP, 0)
    ann.free(0, [1])
    assert ann.held(0) == {0: 3}
    ann.free(0, [2])
    assert ann.held(0) == {}


def test_clients_without_a_quota_share_what_is_left(shared):
    bo, cy = shared.join("bo"), shared.join("cy")
    bo.add(0, 1, ((0, 3),))
    assert not cy.fits(returns(2))
    assert cy.fits(returns(1))
    bo.free_all()
    assert cy.fits(returns(4))


def test_a_quota_changes_while_its_client_holds_arrays(shared):
    bo = shared.join("bo")
    bo.add(0, 1, ((0, 3),))
    shared.change("bo", 4, bo)
    assert bo.held(0) == {0: 3}
    assert (bo.quota.limits, shared.rest()) == ([4], [0])
    shared.change("ann", 2, None)
    assert shared.rest() == [6]
    with pytest.raises(ValueError, match="the quotas of clients are 13 B together, more than the 16 B of a"):
        shared.change("ann", 9, None)
    assert shared.rest() == [6]


def test_quotas_hold_on_an_island_that_joins(shared):
    ann, bo = shared.join("ann"), shared.join("bo")
    ann.add(0, 1, ((0, 3),))
    with pytest.raises(
        ValueError, match="8 B together, more than the 8 B of a device of island1 without its"
    ):
        shared.check_island(DeviceLimits(8, 1))
    shared.check_island(DeviceLimits(30, 4))
    shared.add_island(DeviceLimits(30, 4), [("ann", ann), ("bo", bo)])
    assert (ann.quota.limits, bo.quota.limits, shared.rest()) == ([8, 8], [4, 18], [4, 18])
    assert shared.join("cy").quota is bo.quota
    bo.add(1, 2, ((0, 18),))
    assert not bo.quota.fits(1, ((0, 1),))
    assert ann.quota.fits(1, ((0, 8),))
    assert ann.held(0) == {0: 3}
    shared.add_island(None, [("ann", ann), ("bo", bo)])
    assert (ann.quota.limits, bo.quota.limits) == ([8, 8, None], [4, 18, None])


def test_an_island_that_is_lost_holds_nothing(shared):
    ann = shared.join("ann")
    ann.add(0, 1, ((0, 3),))
    ann.begin(STEP, returns(2), {0: [1]}, {0: [2]}, {})
    ann.lose_island(0)
    ann.finish(STEP, 0)
    ann.free(0, [1, 2])
    assert ann.held(0) == {}
    assert ann.quota.held == [{}]


def test_islands_without_limits_have_no_quota():
    assert Quota([None]).fits(0, ((0, 1 << 60),))


def test_a_client_that_frees_no_denied_array_is_disconnected(monkeypatch, shared):
    monkeypatch.setattr(schedulers, "MAX_DENIED", 3)
    scheduler = Scheduler(1, memory=shared)
    scheduler.handle(ClientJoined(0, name="ann"), 0.0)
    for number in range(4):
        step = QueuedStep(0, number, 1, {0: ()}, {0: (100 + number,)}, memory=returns(9))
        assert scheduler.handle(WorkSubmitted(step), 0.0) == [CollectMemory(0)]
        refused, *ends = scheduler.handle(MemoryCollected(0), 0.0)
        assert isinstance(refused, RefuseStep)
        assert [type(each) for each in ends] == ([] if number < 3 else [DisconnectClient])

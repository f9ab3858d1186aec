"""Calls of functions among steps: they keep their order, and later steps do not wait for them."""

from __future__ import annotations

import pytest

from pathways.runtime.control.core import ClusterCore, Limits
from pathways.runtime.control.gang import Draining, Running
from pathways.runtime.control.records.errors import CallFailedError, Failure, HostLostError
from pathways.runtime.control.records.events import HostLost, LeaveRequested, Tick
from pathways.runtime.control.records.reports import CallReport, HostReport
from pathways.runtime.control.records.step import FunctionCall, Step
from pathways.runtime.control.stalls import describe_step

BAD = Failure(CallFailedError, "host 0 (island0) raised ValueError: x")


def core_of(*islands: tuple[int, ...], **limits: object) -> ClusterCore:
    return ClusterCore(islands, Limits(**limits), 0.0)


def issued(core: ClusterCore, step: Step, producers: tuple[Step, ...] = ()) -> Step:
    core.issue(step, [gang for gang in core.gangs if step.hosts & set(gang.hosts)], producers)
    return step


def call(core: ClusterCore, *hosts: int, producers: tuple[Step, ...] = ()) -> FunctionCall:
    one = FunctionCall("m:f", core.take_numbers(), hosts, 0.0)
    issued(core, one, producers)
    return one


def step(core: ClusterCore, *hosts: int, producers: tuple[Step, ...] = ()) -> Step:
    return issued(core, Step("f", core.take_numbers(), hosts), producers)


def test_calls_take_no_room_in_the_window():
    core = core_of((0,), ahead=1)
    for _ in range(3):
        call(core, 0)
    window = core.gangs[0].window
    assert window.blocker() is None
    first = step(core, 0)
    assert window.blocker() is first
    core.done(core.gangs[0], 0, first.number, 1.0)
    assert window.blocker() is None
    assert len(window.unfinished()) == 3


def test_calls_that_fail_leave_an_island_of_several_hosts_running():
    core = core_of((0, 1))
    before, one = step(core, 0, 1), call(core, 0, 1)
    after = step(core, 0, 1, producers=(one,))
    for host, failure in ((0, BAD), (1, None)):
        core.end_call(host, one.number, f"answer {host}", failure)
    assert type(core.gangs[0].state) is Running
    assert one.answers == {0: "answer 0", 1: "answer 1"}
    # Its result depends on earlier steps, which another host may still spoil.
    assert not one.is_settled()
    for running in (before, after):
        for host in (0, 1):
            core.done(core.gangs[0], host, running.number, 1.0)
    assert one.is_settled()
    with pytest.raises(CallFailedError, match="m:f: host 0"):
        one.check()


def test_calls_do_not_delay_steps_after_them():
    core = core_of((0, 1))
    call(core, 0, 1)
    after = step(core, 0, 1)
    for host in (0, 1):
        core.done(core.gangs[0], host, after.number, 1.0)
    assert after.is_settled()


def test_calls_are_lost_with_their_island_and_delay_its_leaving():
    core = core_of((0,), (1,))
    first, second = call(core, 0), call(core, 1)
    core.handle(LeaveRequested(core.gangs[1].key, 1), 1.0)
    core.handle(HostLost(core.gangs[0].key, 0, "of a test"), 1.0)
    with pytest.raises(HostLostError, match="m:f: host 0"):
        first.check()
    assert core.steps.of(core.gangs[1]) == [second]
    assert isinstance(core.gangs[1].state, Draining)
    core.end_call(1, second.number, None, None)
    assert core.steps.of(core.gangs[1]) == []


@pytest.mark.parametrize("host", [1, 7])
def test_calls_ignore_answers_to_other_requests(host):
    core = core_of((0,), (1,))
    one, other = call(core, 0), step(core, 0)
    core.end_call(host, one.number, None, None)
    core.end_call(0, other.number, None, BAD)
    core.end_call(0, 99, None, None)
    assert not one.is_done()
    assert not other.is_done()


def test_calls_that_take_long_are_reported_and_never_ended():
    core = core_of((0,), stall_report=5.0, step_deadline=20.0, heartbeat=1e9)
    one = call(core, 0)
    for second in range(40):
        core.gangs[0].pulses[0].progressed = second
        core.handle(Tick(), float(second))
    assert type(core.gangs[0].state) is Running
    running = CallReport(one.number, ", batch 7", 5.2, "rows at mydata.py:3")
    text = describe_step(one, 5.0, {0: HostReport(0, 0, (), (), (running,))})
    assert text.splitlines() == [
        f"call {one.number} of m:f has been running for 5 seconds",
        "  host 0: has been running for 5 s, batch 7, in rows at mydata.py:3",
    ]
    assert describe_step(one, 5.0, {0: HostReport(0, 0, (), ())}).splitlines()[1] == "  host 0: not started"

"""Issued steps, and those of them that are lost with an island."""

from __future__ import annotations

import pytest

from pathways.runtime.control.gang import Gang
from pathways.runtime.control.records.errors import HostError, HostLostError, lost
from pathways.runtime.control.records.events import GangKey, HostLost
from pathways.runtime.control.records.step import Step
from pathways.runtime.control.steps import IssuedSteps

LOST = lost("host 0 (island0) is lost: of a test")


def gang(island: int, *hosts: int, start: int = 0) -> Gang:
    return Gang(GangKey(island, start), hosts, ahead=9, grace=1.0, now=0.0)


def issued(steps: IssuedSteps, number: int, *gangs: Gang, producers: tuple[Step, ...] = ()) -> Step:
    step = Step("f", number, [host for gang in gangs for host in gang.hosts])
    steps.issue(step, gangs, producers)
    return step


def test_issued_steps_refuse_a_lost_island_and_note_nothing():
    first, second = gang(0, 0), gang(1, 1)
    first.handle(HostLost(first.key, 0, "of a test"), 0.0)
    steps = IssuedSteps(False)
    with pytest.raises(HostLostError, match="host 0"):
        issued(steps, 1, second, first)
    assert len(steps) == 0
    assert second.window.unfinished() == []


def test_issued_steps_of_a_lost_island_go_on_elsewhere():
    first, second, steps = gang(0, 0), gang(1, 1), IssuedSteps(False)
    alone, both, other = issued(steps, 1, first), issued(steps, 2, first, second), issued(steps, 3, second)
    assert steps.lose(first, LOST) == [alone, both]
    assert alone.is_done()
    assert both.pending() == (1,)
    assert other.pending() == (1,)
    assert steps.unfinished() == [both, other]
    assert len(steps) == 2


def test_issued_steps_do_not_pass_to_successors():
    """A draining successor would wait for them, and be reported as late with them."""
    first, second, steps = gang(0, 0), gang(1, 1), IssuedSteps(False)
    before = issued(steps, 1, first, second)
    steps.lose(first, LOST)
    successor = gang(0, 0, start=1)
    assert steps.of(successor) == []
    after = issued(steps, 2, successor)
    assert steps.of(successor) == [after]
    assert steps.of(second) == [before]


def test_issued_steps_hold_a_step_once():
    """After Ctrl-C between the note and the messages, the shell repeats both."""
    only, steps = gang(0, 0), IssuedSteps(True)
    step = issued(steps, 1, only)
    steps.issue(step, [only], [])
    assert steps.of(only) == [step]
    step.done(0, None)
    steps.end(step)
    steps.issue(step, [only], [])
    assert len(steps) == 0
    assert only.window.blocker() is None


def test_issued_steps_spoil_followers_of_a_lost_multi_host_island():
    """The loss spreads from island to island as far as its values may have spread, and no further."""
    wide, second, third, steps = gang(0, 0, 1), gang(1, 2), gang(2, 3), IssuedSteps(True)
    settled = issued(steps, 1, wide)
    for host in wide.hosts:
        settled.done(host, None)
    first = issued(steps, 2, wide, second)
    follower = issued(steps, 3, second, third)
    apart = issued(steps, 4, gang(3, 4))
    for host in follower.hosts:
        follower.done(host, None)
    steps.lose(wide, LOST)
    settled.check()
    for step in (first, follower):
        with pytest.raises(HostError, match="of a test"):
            step.check_spoiled()
        with pytest.raises(HostError, match="of a test"):
            issued(steps, 5, third, producers=(step,))
    apart.done(4, None)
    apart.check()


def test_issued_steps_drop_a_step_that_is_refused_on_its_second_try():
    """Ctrl-C came when it was in one window, and an island was lost before the second try."""
    first, second, steps = gang(0, 0), gang(1, 1), IssuedSteps(False)
    step = Step("f", 1, [0, 1])
    first.window.add(step)
    second.handle(HostLost(second.key, 1, "of a test"), 0.0)
    with pytest.raises(HostLostError, match="host 1"):
        steps.issue(step, (first, second), ())
    assert first.window.unfinished() == []
    with pytest.raises(HostLostError, match="program f: host 1"):
        step.check()


def test_issued_steps_put_a_repeated_step_into_each_window_once():
    first, second, steps = gang(0, 0), gang(1, 1), IssuedSteps(False)
    step = Step("f", 1, [0, 1])
    first.window.add(step)
    for _ in range(2):
        steps.issue(step, (first, second), ())
    assert [one.window.unfinished() for one in (first, second)] == [[step], [step]]

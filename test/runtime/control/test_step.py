"""Steps and their results, which are hidden until no failure of a host can have spoiled them."""

from __future__ import annotations

import pytest

from pathways.runtime.control.records.errors import HostLostError, ProgramFailedError, failed, lost
from pathways.runtime.control.records.step import Step

LOST = lost("host 0 is lost")


def chain(*hosts: list[int]) -> list[Step]:
    """Returns steps of some hosts, each after the ones before."""
    steps: list[Step] = []
    for number, of_step in enumerate(hosts):
        step = Step("f", number, of_step)
        step.follow(other for other in steps if not step.hosts.isdisjoint(other.hosts))
        steps.append(step)
    return steps


def test_step_is_settled_when_all_hosts_are_done_with_it_and_those_before():
    first, second, third = chain([0, 1], [1], [1, 2])
    second.done(1, None)
    for host in (1, 2):
        third.done(host, None)
    first.done(1, None)
    assert all(step.is_done() for step in (second, third))
    # Host 0 may have failed, and host 1 may have received another message for the missing one.
    assert not any(step.is_settled() for step in (first, second, third))
    first.done(0, None)
    assert all(step.is_settled() for step in (third, second, first))
    third.check()


def test_step_that_is_spoiled_spoils_those_after_it():
    first, second, third, other = chain([0, 1], [1], [1, 2], [3])
    for step in (second, third, other):
        for host in step.hosts:
            step.done(host, None)
    first.spoil(LOST)
    assert all(step.is_settled() for step in (third, other))
    for step in (third, second, first):
        with pytest.raises(HostLostError, match="program f: host 0 is lost"):
            step.check()
    other.check()


def test_step_fails_because_of_a_lost_host_that_was_done():
    (step,) = chain([0, 1])
    step.done(0, None)
    assert not step.lose(0, LOST)
    step.done(1, failed("host 1: the connection has ended"))
    with pytest.raises(HostLostError, match="program f: host 0 is lost"):
        step.check([1])
    step.check([0])


def test_step_is_done_once_on_each_host():
    step = Step("f", 7, [0, 1])
    assert not step.done(0, None)
    assert not step.done(0, failed("too late"))
    assert step.pending() == (1,)
    assert step.is_done([0])
    assert not step.is_done()
    assert step.done(1, None)
    # Its results were available before the host was lost.
    assert step.lose(1, LOST)
    assert not step.is_lost()


def test_step_may_have_one_failed_result():
    """The first array of a step has the number after its own."""
    step = Step("f", 7, [0])
    step.done(0, None, {1: failed("host 0: a result on slice s0: out of memory")})
    step.check(number=8)
    for number in (9, None):
        with pytest.raises(ProgramFailedError, match="program f: host 0: a result on slice s0"):
            step.check(number=number)


def test_step_that_reads_a_lost_one_names_the_loss():
    """A step that reads a result of the lost host fails with the loss, not with its own host's error."""
    first, second = Step("f", 1, [0, 1]), Step("g", 2, [1])
    second.read([first, None, first])
    first.lose(0, LOST)
    first.done(1, failed("host 1: the connection has ended"))
    second.done(1, failed("host 1: the connection has ended"))
    with pytest.raises(HostLostError, match="program g: host 0 is lost"):
        second.check()


def test_step_that_is_spoiled_is_an_error_before_it_is_done():
    (step,) = chain([0, 1])
    assert not step.is_settled()
    step.spoil(LOST)
    assert step.is_settled()
    assert not step.is_done()
    with pytest.raises(HostLostError):
        step.check_spoiled()

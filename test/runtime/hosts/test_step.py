"""When what a step has made may be seen, where a host that fails lets others compute something wrong."""

from __future__ import annotations

import pytest

from pathways.runtime.hosts.host import HostError
from pathways.runtime.hosts.step import Step


def chain(*hosts: list[int]) -> list[Step]:
    """Steps of some hosts, each behind those before."""
    steps: list[Step] = []
    for number, of_step in enumerate(hosts):
        step = Step("f", number, of_step)
        step.follow(other for other in steps if not step.hosts.isdisjoint(other.hosts))
        steps.append(step)
    return steps


def test_a_step_is_settled_when_all_hosts_are_done_with_it_and_with_those_before():
    first, second, third = chain([0, 1], [1], [1, 2])
    second.done(1, None)
    for host in (1, 2):
        third.done(host, None)
    first.done(1, None)
    assert all(step.is_done() for step in (second, third))
    # Host 0 may have failed, and host 1 have taken something else for what it sends.
    assert not any(step.is_settled() for step in (first, second, third))
    first.done(0, None)
    assert all(step.is_settled() for step in (third, second, first))
    third.check()


def test_what_spoils_a_step_spoils_those_behind_it():
    first, second, third, other = chain([0, 1], [1], [1, 2], [3])
    for step in (second, third, other):
        for host in step.hosts:
            step.done(host, None)
    first.spoil("host 0 is lost")
    assert all(step.is_settled() for step in (third, other))
    for step in (third, second, first):
        with pytest.raises(HostError, match="program f: host 0 is lost"):
            step.check()
    other.check()


def test_a_host_that_is_lost_when_it_is_done_is_why_others_fail():
    (step,) = chain([0, 1])
    step.done(0, None)
    assert not step.lose(0, "host 0 is lost")
    step.done(1, "the connection has ended")
    with pytest.raises(HostError, match="program f: host 0 is lost"):
        step.check([1])
    step.check([0])

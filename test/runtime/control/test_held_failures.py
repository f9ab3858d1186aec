"""Failures of steps are held for a moment, for a loss may be their cause."""

from __future__ import annotations

import pytest

from pathways.runtime.control.core import ClusterCore, Limits
from pathways.runtime.control.effects import StepFailed
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.control.records.events import HostDisconnected, HostLost, Tick
from pathways.runtime.control.records.step import Step

FAILED = "the connection to host 0 has ended"


def begun(hosts: int = 2) -> tuple[ClusterCore, Step]:
    """Returns a cluster of islands of one host each, and a step of all of them that fails on the last one."""
    core = ClusterCore([[host] for host in range(hosts)], Limits(), 0.0)
    step = Step("f", core.take_numbers(), range(hosts))
    core.issue(step, core.gangs, ())
    core.fail(core.gangs[-1], hosts - 1, step.number, FAILED, {}, 1.0)
    return core, step


def failed_at(core: ClusterCore, now: float) -> list[str | None]:
    """Advances the time; returns the failures that are released then."""
    return [effect.failure.error for effect in core.handle(Tick(), now) if isinstance(effect, StepFailed)]


def error_of(step: Step) -> str:
    """Returns the error of a step, without the status that errors have beside arrays of JAX."""
    with pytest.raises(HostError) as caught:
        step.check()
    return str(caught.value).partition("program f: ")[2]


def test_held_failure_is_explained_by_a_loss():
    core, step = begun()
    assert not step.is_done([1])
    effects = core.handle(HostLost(core.gangs[0].key, 0, "killed by signal 9"), 1.05)
    assert any(isinstance(effect, StepFailed) for effect in effects)
    assert step.is_done()
    assert error_of(step) == "host 0 (island0) is lost: killed by signal 9"


def test_held_failure_without_a_cause_is_released():
    core, step = begun()
    assert failed_at(core, 1.05) == []
    assert failed_at(core, 1.15) == [FAILED]
    core.done(core.gangs[0], 0, step.number, 1.2)
    assert error_of(step) == f"host 1 (island1): {FAILED}"


def test_held_failure_waits_for_the_exit_of_a_disconnected_host():
    core, step = begun()
    core.handle(HostDisconnected(core.gangs[0].key, 0), 1.05)
    assert failed_at(core, 1.9) == []
    core.handle(HostLost(core.gangs[0].key, 0, "exit code 1"), 2.0)
    assert "host 0 (island0) is lost: exit code 1" in error_of(step)
    core, step = begun()
    core.handle(HostDisconnected(core.gangs[0].key, 0), 1.05)
    assert failed_at(core, 3.1) == [FAILED]


def test_failure_on_the_only_host_is_not_held():
    _, step = begun(hosts=1)
    assert error_of(step) == f"host 0 (island0): {FAILED}"


def test_failure_on_the_first_host_is_held_once_another_has_joined():
    core = ClusterCore([[0]], Limits(), 0.0)
    core.add_gang([1], 0.5)
    step = Step("f", core.take_numbers(), [0])
    core.issue(step, core.gangs[:1], ())
    assert core.fail(core.gangs[0], 0, step.number, FAILED, {}, 1.0) == []
    assert failed_at(core, 1.2) == [FAILED]


def test_held_failure_is_explained_by_the_loss_of_an_argument():
    """The copy from host 0 to host 1 fails there, and with it a step of host 1 alone."""
    core, copy = begun()
    step = Step("g", core.take_numbers(), [1])
    core.issue(step, [core.gangs[1]], [copy])
    core.fail(core.gangs[1], 1, step.number, FAILED, {}, 1.0)
    assert not step.is_done()
    core.handle(HostLost(core.gangs[0].key, 0, "killed by signal 9"), 1.05)
    with pytest.raises(HostError, match=r"host 0 \(island0\) is lost: killed by signal 9"):
        step.check()

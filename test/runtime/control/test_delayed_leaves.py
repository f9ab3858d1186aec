"""Leaves of islands that a client delays, to move its state elsewhere first."""

from __future__ import annotations

import pytest

from pathways.runtime.control.core import ClusterCore, Limits
from pathways.runtime.control.effects import GangLeaving, RequestReports
from pathways.runtime.control.gang import Terminating
from pathways.runtime.control.records.errors import HostLeavingError
from pathways.runtime.control.records.events import (
    GangKey,
    LeaveAllowed,
    LeaveDelayed,
    LeaveRequested,
    ReplyReceived,
    Tick,
)
from pathways.runtime.control.records.reports import HostReport
from pathways.runtime.control.records.step import FunctionCall


def test_leaving_waits_until_no_client_delays_it():
    core = ClusterCore([(0,), (1,)], Limits(grace=20.0), 0.0)
    gang = core.gangs[1]
    for _ in range(2):
        core.handle(LeaveDelayed(gang.key), 0.0)
    core.handle(LeaveRequested(gang.key, 1), 1.0)
    call = FunctionCall("m:f", core.take_numbers(), (1,), 1.0)
    core.issue(call, [gang], ())
    core.end_call(1, call.number, None, None)
    # Nobody asks whether anything of it is needed.
    assert [effect for effect in core.handle(Tick(), 2.0) if isinstance(effect, RequestReports)] == []
    assert core.handle(LeaveAllowed(gang.key), 3.0) == []
    effects = core.handle(LeaveAllowed(gang.key), 4.0)
    assert [effect.gang for effect in effects if isinstance(effect, GangLeaving)] == [gang.key]
    with pytest.raises(HostLeavingError, match="host 1"):
        core.issue(FunctionCall("m:f", core.take_numbers(), (1,), 4.0), [gang], ())
    (request,) = (effect for effect in core.handle(Tick(), 5.0) if isinstance(effect, RequestReports))
    core.handle(ReplyReceived(1, request.request, HostReport(0, 0, (), ())), 5.0)
    assert isinstance(gang.state, Terminating)
    # Of workers that were replaced, nothing follows.
    assert core.handle(LeaveAllowed(GangKey(1, 7)), 6.0) == []


def test_leaving_that_is_delayed_is_over_when_its_time_is():
    core = ClusterCore([(0,)], Limits(grace=20.0), 0.0)
    core.handle(LeaveDelayed(core.gangs[0].key), 0.0)
    core.handle(LeaveRequested(core.gangs[0].key, 0), 1.0)
    core.handle(Tick(), 20.9)
    core.gangs[0].check_open()
    core.handle(Tick(), 21.1)
    assert isinstance(core.gangs[0].state, Terminating)

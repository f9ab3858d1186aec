"""Copy of a cluster for a client: steps without progress, and a closed cluster."""

from __future__ import annotations

import logging

import pytest

from pathways.runtime.control.core import ClusterCore, Limits
from pathways.runtime.control.effects import Effect, GangJoined, GangLost, Log, RequestReports
from pathways.runtime.control.records.errors import ClusterClosedError, lost
from pathways.runtime.control.records.events import GangClosed, GangKey, ReplyReceived, Tick
from pathways.runtime.control.records.reports import HostReport, StepReport
from pathways.runtime.control.records.step import Step
from pathways.runtime.service.client.cluster_mirror import ClusterMirror, ServiceLost


def core_and_step() -> tuple[ClusterMirror, Step]:
    """Returns a cluster of two islands of a host each, and a step on both."""
    core = ClusterMirror([(0, [0]), (0, [1])], 1, stall_report=10.0)
    step = Step("f", core.take_numbers(), [0, 1], began=0.0)
    core.issue(step, core.gangs, ())
    return core, step


def reply(core: ClusterMirror, request: Effect, host: int, now: float) -> list[Effect]:
    assert isinstance(request, RequestReports)
    report = HostReport(0, 0, (), (StepReport("f", 1, 9.0, True, ()),) if host == 1 else ())
    return core.handle(ReplyReceived(host, request.request, report), now)


def test_cluster_mirror_reports_a_stalled_step_whenever_its_time_has_doubled():
    core, _ = core_and_step()
    assert core.handle(Tick(), 9.0) == []
    for now, seconds in ((11.0, 11), (23.0, 23)):
        (request,) = core.handle(Tick(), now)
        assert core.handle(Tick(), now + 0.6) == []
        assert reply(core, request, 0, now + 1) == []
        assert reply(core, request, 1, now + 1) == [
            Log(
                logging.WARNING,
                f"step 1 of program f has made no progress for {seconds} seconds\n"
                "  host 0: not started\n  host 1: computes",
            )
        ]
    # A host that does not reply is reported so.
    (request,) = core.handle(Tick(), 47.0)
    reply(core, request, 1, 47.5)
    (log,) = core.handle(Tick(), 60.0)
    assert isinstance(log, Log)
    assert "host 0: did not report" in log.text


def test_cluster_mirror_reports_no_step_that_has_ended_meanwhile():
    for end in ("done", "lost"):
        core, step = core_and_step()
        (request,) = core.handle(Tick(), 11.0)
        reply(core, request, 0, 11.5)
        if end == "lost":
            core.handle(GangLost(GangKey(1, 0), lost("it is lost"), True), 12.0)
            core.handle(GangLost(GangKey(0, 0), lost("it is lost"), True), 12.0)
        for host, gang in enumerate(core.gangs):
            core.done(gang, host, step.number, 12.0)
        assert reply(core, request, 1, 12.5) == []
        assert not core._subjects
        assert core.handle(Tick(), 40.0) == []


def test_cluster_mirror_counts_the_end_of_a_step_as_progress_of_the_next():
    """A host that is done with one step has made progress with the next."""
    core, first = core_and_step()
    second = Step("g", core.take_numbers(), [0], began=0.0)
    core.issue(second, core.gangs[:1], ())
    core.done(core.gangs[0], 0, first.number, 8.0)
    effects = core.handle(Tick(), 11.0)
    assert [effect.hosts for effect in effects if isinstance(effect, RequestReports)] == [(1,)]
    effects = core.handle(Tick(), 18.5)
    assert [effect.hosts for effect in effects if isinstance(effect, RequestReports)] == [(0,)]


def test_cluster_mirror_reports_a_closed_cluster_as_the_core_of_its_workers_does():
    client, _ = core_and_step()
    owner = ClusterCore([(0,), (1,)], Limits(), 0.0)
    for core in (client, owner):
        core.handle(GangClosed(GangKey(1, 0), "is closed"), 1.0)
        with pytest.raises(ClusterClosedError, match=r"^host 1 \(island1\) is closed$"):
            core.gangs[1].check()


def test_cluster_mirror_adds_an_island_once():
    """A client may be admitted with an island that it then gets a notice of."""
    core, _ = core_and_step()
    assert not core.has_multi_host_islands
    for _ in range(2):
        assert core.handle(GangJoined(GangKey(2, 0), (2, 3)), 1.0) == []
    assert [gang.hosts for gang in core.gangs] == [(0,), (1,), (2, 3)]
    assert core.has_multi_host_islands
    step = Step("g", core.take_numbers(), [1, 2, 3], began=1.0)
    core.issue(step, core.gangs[1:], ())
    core.handle(GangLost(GangKey(2, 0), lost("it is lost"), False), 2.0)
    assert step.is_done([2, 3])


def test_cluster_mirror_loses_an_island_that_joins_a_lost_service():
    core, _ = core_and_step()
    core.handle(ServiceLost(lost("it is lost")), 1.0)
    core.handle(GangJoined(GangKey(2, 0), (2,)), 1.0)
    assert core.gangs[2].is_dead()

"""Reports of steps without progress, and the hosts that are lost for them."""

from __future__ import annotations

from pathways.runtime.control.gang import Gang
from pathways.runtime.control.records.events import GangKey
from pathways.runtime.control.records.reports import HostReport, StepReport, WaitReport
from pathways.runtime.control.records.step import Step
from pathways.runtime.control.stalls import Stall, Stalls, causes, describe_step


def waits(host: int, is_sure: bool = True) -> WaitReport:
    return WaitReport(host, "10.0.0.5:9", "c0", "s0", "s1", 3, 12.3, is_sure)


def report(run: int, *waiting: WaitReport, is_issued: bool = True) -> HostReport:
    return HostReport(0, 0, ("f",), (StepReport("f", run, 20.0, is_issued, waiting),))


def test_stalls_describe_each_host_by_its_wait():
    reports = {
        0: report(7),
        1: report(7, waits(0)),
        2: report(7, waits(0, is_sure=False)),
        3: report(7, is_issued=False),
        4: report(6),
    }
    waited = "has waited for host 0 at 10.0.0.5:9 on channel c0 (s0 -> s1, transfer 3) for 12 s"
    assert describe_step(Step("f", 7, range(6)), 61, reports).splitlines() == [
        "step 7 of program f has made no progress for 61 seconds",
        "  host 0: computes",
        f"  host 1: {waited}",
        f"  host 2: computes, or {waited}",
        "  host 3: has been issuing it for 20 s",
        "  host 4: not started; running step 6 of program f",
        "  host 5: did not report",
    ]


def test_stalls_are_not_caused_by_waiting_hosts():
    step = Step("f", 7, range(3))
    assert causes(step, {0: report(7), 1: report(7, waits(0)), 2: report(7, waits(1, is_sure=False))}) == [0]
    # It may compute, or wait for a host that certainly computes.
    assert causes(step, {n: report(7, waits((n + 1) % 3, is_sure=n > 0)) for n in range(3)}) == [0]
    # Each waits for the next: none is the cause, and all are lost.
    assert causes(step, {n: report(7, waits((n + 1) % 3)) for n in range(3)}) == [0, 1, 2]


def test_stalls_are_caused_by_a_host_that_waits_for_a_finished_one():
    step = Step("f", 7, range(2))
    step.done(0, None)
    assert causes(step, {1: report(7, waits(0))}) == [1]


def step_and_gang() -> tuple[Step, Gang]:
    return Step("f", 7, [0, 1], began=0.0), Gang(GangKey(0, 0), [0, 1], ahead=9, grace=1.0, now=0.0)


def test_stalls_are_reported_after_some_time_and_whenever_it_has_doubled():
    step, gang = step_and_gang()
    stalls = Stalls(10.0, None)
    found = {now: stalls.check([step], [gang], float(now)) for now in range(45)}
    assert {now: stalls for now, stalls in found.items() if stalls} == {
        10: [Stall(step, 0.0, 10.0, False)],
        20: [Stall(step, 0.0, 20.0, False)],
        40: [Stall(step, 0.0, 40.0, False)],
    }


def test_stalls_end_with_any_progress_of_the_hosts():
    """A step that waits for those before it makes as much progress as they do."""
    step, gang = step_and_gang()
    stalls = Stalls(10.0, None)
    gang.pulses[1].progressed = 8.0
    assert stalls.check([step], [gang], 12.0) == []
    assert stalls.check([step], [gang], 18.0) == [Stall(step, 8.0, 10.0, False)]
    gang.pulses[1].progressed = 19.0
    assert stalls.check([step], [gang], 28.0) == []
    assert stalls.check([step], [gang], 29.0) == [Stall(step, 19.0, 10.0, False)]


def test_stalls_name_the_first_of_queued_steps():
    step, gang = step_and_gang()
    after, other = Step("f", 8, [0], began=0.0), Step("f", 9, [0, 2], began=0.0)
    far = Gang(GangKey(1, 0), [2], ahead=9, grace=1.0, now=0.0)
    assert [stall.step for stall in Stalls(10.0, None).check([step, after, other], [gang, far], 10.0)] == [
        step,
        other,
    ]


def test_stalls_end_a_step_at_its_deadline():
    step, gang = step_and_gang()
    assert Stalls(None, 30.0).check([step], [gang], 29.0) == []
    assert Stalls(10.0, 30.0).check([step], [gang], 30.0) == [Stall(step, 0.0, 30.0, True)]

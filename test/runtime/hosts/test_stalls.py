"""What is said of a step that does not end, and who is ended for it."""

from __future__ import annotations

from pathways.runtime.hosts.messages import Report, Underway, Waiting
from pathways.runtime.hosts.stalls import causes, described
from pathways.runtime.hosts.step import Step


def waits(host: int, is_sure: bool = True) -> Waiting:
    return Waiting(host, "c0", "s0", "s1", 3, 12.3, is_sure)


def report(run: int, *waiting: Waiting, is_issued: bool = True) -> Report:
    return Report(0, 0, ("f",), (Underway("f", run, 20.0, is_issued, waiting),))


def test_a_host_is_described_by_what_it_waits_for():
    reports = {
        0: report(7),
        1: report(7, waits(0)),
        2: report(7, waits(0, is_sure=False)),
        3: report(7, is_issued=False),
        4: report(6),
    }
    assert described(Step("f", 7, range(6)), 61, reports).splitlines() == [
        "step 7 of program f has made no progress for 61 seconds",
        "  host 0: computes",
        "  host 1: waits for host 0 on channel c0 (s0 -> s1, transfer 3) since 12 s",
        "  host 2: computes, or waits for host 0 on channel c0 (s0 -> s1, transfer 3) since 12 s",
        "  host 3: issues it since 20 s",
        "  host 4: has not begun it; it is at step 6 of program f",
        "  host 5: does not say what it is at",
    ]


def test_a_host_that_waits_for_another_one_is_not_the_cause():
    step = Step("f", 7, range(3))
    assert causes(step, {0: report(7), 1: report(7, waits(0)), 2: report(7, waits(1, is_sure=False))}) == [0]
    # It may compute, or wait for one that computes for sure.
    assert causes(step, {n: report(7, waits((n + 1) % 3, is_sure=n > 0)) for n in range(3)}) == [0]
    # Each waits for the next: nobody is the cause, and all end.
    assert causes(step, {n: report(7, waits((n + 1) % 3)) for n in range(3)}) == [0, 1, 2]


def test_what_was_sent_by_a_host_that_is_done_does_not_excuse():
    step = Step("f", 7, range(2))
    step.done(0, None)
    assert causes(step, {1: report(7, waits(0))}) == [1]

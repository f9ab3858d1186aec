"""Limits on the steps in flight on an island."""

from __future__ import annotations

from pathways.runtime.control.step import Step
from pathways.runtime.control.window import Window


def step(number: int, *hosts: int) -> Step:
    return Step("f", number, hosts or (0,))


def test_window_is_blocked_by_the_oldest_unfinished_step():
    window = Window(2)
    first, second, third = step(1), step(2), step(3)
    for one in (first, second):
        assert window.blocker() is None
        window.add(one)
    # Steps are done in their order: that the second one is says that the first will be soon.
    second.done(0, None)
    assert window.blocker() is first
    first.done(0, None)
    assert window.blocker() is None
    window.add(third)
    assert window.unfinished() == [third]


def test_window_holds_a_step_until_all_its_hosts_are_done():
    window = Window(1)
    shared = step(1, 0, 1)
    window.add(shared)
    shared.done(0, None)
    assert window.blocker() is shared
    shared.done(1, None)
    assert window.blocker() is None


def test_window_delays_only_islands_with_shared_steps():
    left, right = Window(1), Window(1)
    left.add(step(1, 0))
    assert left.blocker() is not None
    assert right.blocker() is None


def test_window_may_count_a_step_for_several():
    """One of a program of which few may be under way, beside those of a program of which many may."""
    window = Window(8)
    large = Step("g", 1, (0,), share=4)
    small = [step(n) for n in range(2, 6)]
    window.add(large)
    for one in small:
        assert window.blocker() is None
        window.add(one)
    assert window.blocker() is large
    large.done(0, None)
    assert window.blocker(4) is None
    assert window.blocker(5) is small[0]

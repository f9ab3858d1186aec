"""Limits on the steps in flight on an island."""

from __future__ import annotations

import itertools
import sys
from types import FrameType
from typing import Any

from pathways.runtime.control.records.step import Step
from pathways.runtime.control.records.window import Window


def step(number: int, *hosts: int) -> Step:
    return Step("f", number, hosts or (0,))


def test_window_is_blocked_by_the_oldest_unfinished_step():
    window = Window(2)
    first, second, third = step(1), step(2), step(3)
    for one in (first, second):
        assert window.blocker() is None
        window.add(one)
    # Steps are done in order: when the second one is done, the first soon is, too.
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
    """A step of a program with a small limit counts for more than one of a program with a large limit."""
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


class InterruptAt:
    """Tracer that raises KeyboardInterrupt before a line of the window module, in order of execution."""

    def __init__(self, line: int) -> None:
        self._lines = line
        self.is_raised = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_globals["__name__"] != Window.__module__:
            return None
        if event == "line" and not self.is_raised:
            self._lines -= 1
            if self._lines < 0:
                self.is_raised = True
                raise KeyboardInterrupt
        return self


def test_window_has_as_much_room_after_an_interrupt():
    for line in itertools.count():
        window, trace, number = Window(4), InterruptAt(line), itertools.count()
        for _ in range(4):
            window.add(step(next(number)))
        window.unfinished()[0].done(0, None)
        window.unfinished()[0].done(0, None)
        sys.settrace(trace)
        try:
            assert window.blocker(2) is None
            window.add(Step("g", next(number), (0,), share=2))
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        if not trace.is_raised:
            break
        while window.blocker() is None:
            window.add(step(next(number)))
        assert sum(one.share for one in window.unfinished()) == 4
    assert line > 5

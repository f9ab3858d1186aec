"""Reports of long activities, with a clock that the test sets."""

from __future__ import annotations

import pytest

from pathways.runtime.proxy.stalls import StallMonitor


class Clock:
    """Clock, with the lines that were reported."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self.monitor = StallMonitor(self.lines.append, lambda: self.now)

    def at(self, now: float) -> list[str]:
        """Checks at a time; returns the lines that were reported since the last check."""
        self.now = now
        self.monitor.check()
        lines = self.lines.copy()
        self.lines.clear()
        return lines


def test_a_long_activity_is_reported_once_and_when_it_ends() -> None:
    clock = Clock()
    with clock.monitor.watching("session 3: compiling program 'jit_step'", 30):
        assert clock.at(30) == []
        assert clock.at(31) == ["session 3: compiling program 'jit_step': not ended after 31 s"]
        assert clock.at(60) == []
        clock.now = 95
    assert clock.at(100) == ["session 3: compiling program 'jit_step': ended after 95 s"]
    assert clock.at(200) == []


def test_a_short_activity_is_not_reported() -> None:
    clock = Clock()
    with clock.monitor.watching("session 3: compiling program 'jit_step'", 30):
        assert clock.at(29) == []
    assert clock.at(60) == []


def test_activities_of_one_subject_are_independent() -> None:
    clock = Clock()
    first = clock.monitor.watching("session 3: waiting", 10)
    second = clock.monitor.watching("session 3: waiting", 10)
    first.__enter__()
    clock.now = 5
    second.__enter__()
    assert clock.at(11) == ["session 3: waiting: not ended after 11 s"]
    first.__exit__(None, None, None)
    assert clock.at(15) == ["session 3: waiting: ended after 11 s"]
    assert clock.at(16) == ["session 3: waiting: not ended after 11 s"]
    second.__exit__(None, None, None)


def test_an_activity_that_fails_has_ended() -> None:
    clock = Clock()

    def compile_() -> None:
        with clock.monitor.watching("session 3: compiling", 30):
            clock.at(31)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        compile_()
    assert clock.at(32) == ["session 3: compiling: ended after 31 s"]

"""Clocks of hosts: the error of their offset is bounded, and translated times keep their order."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from pathways.runtime.traces.clocks import HostClock, RoundTrip

US = 1_000
S = 1_000_000_000


def trip(at: int, ahead: int, there: int, back: int) -> RoundTrip:
    """Returns a round trip that begins at a local time, to a host whose clock is ahead."""
    return RoundTrip(at, at + there + ahead, at + there + back)


@given(
    ahead=st.integers(-S * 10**6, S * 10**6),
    delays=st.lists(st.tuples(st.integers(0, S), st.integers(0, S)), min_size=1, max_size=9),
    time=st.integers(0, 10**6 * S),
)
def test_clock_is_known_to_half_of_the_shortest_round_trip(ahead, delays, time):
    clock = HostClock()
    clock.measure([trip(10 * n * S, ahead, *delay) for n, delay in enumerate(delays)])
    shortest = min(there + back for there, back in delays)
    # Up to one nanosecond, from rounding.
    assert abs(clock.to_local(time + ahead) - time) <= shortest / 2 + 1


@given(
    measured=st.lists(
        st.tuples(st.integers(1, S), st.integers(-S, S), st.integers(0, S), st.integers(0, S)),
        min_size=1,
        max_size=30,
    ),
    times=st.lists(st.integers(0, 40 * S), min_size=2, max_size=20),
)
def test_clock_never_runs_backwards(measured, times):
    """For any measurements, and any times at which a time is translated."""
    clock = HostClock()
    before: list[tuple[int, int]] = []
    at, read = 0, 0
    for pause, ahead, there, back in measured:
        at += pause
        # The clock of the host does not run backwards either.
        last = trip(at, max(ahead, read - at - there), there, back)
        clock.measure([last])
        assert clock.is_measured
        for time, here in before:
            assert clock.to_local(time) == here
        before += [(time, clock.to_local(time)) for time in times if time <= last.read]
        at, read = last.received, last.read
    here = [clock.to_local(time) for time in sorted(times)]
    assert all(a <= b for a, b in itertools.pairwise(here))


def test_clock_keeps_a_good_measurement():
    clock = HostClock()
    clock.measure([trip(0, 5 * S, 10 * US, 10 * US)])
    clock.measure([trip(S, 5 * S, 10 * US, 90_000 * US)])
    assert clock.to_local(6 * S) == S
    assert clock.error < 50 * US


def test_clock_follows_drift():
    """The clock gains 10 us in each second."""
    clock = HostClock()
    for second in range(60):
        clock.measure([trip(second * S, second * 10 * US, 20 * US, 20 * US) for _ in range(4)])
    assert abs(clock.to_local(30 * S + 300 * US) - 30 * S) < 25 * US
    assert abs(clock.to_local(59 * S + 590 * US) - 59 * S) < 25 * US


def test_clock_uses_its_first_measurement_for_earlier_times():
    clock = HostClock()
    clock.measure([trip(10 * S, 3 * S, US, US)])
    assert clock.to_local(4 * S) == S

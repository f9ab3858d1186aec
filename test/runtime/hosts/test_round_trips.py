"""Round-trip times of hosts, and steps that wait for the network."""

from __future__ import annotations

from pathways.runtime.hosts.cluster.round_trips import HostRoundTrip, WindowWaits
from pathways.runtime.resources.status import HostStatus, Status


def test_round_trip_is_the_least_of_the_last_few():
    trip = HostRoundTrip()
    assert trip.seconds is None
    for number in range(3):
        trip.note_ping(number, now=number)
    # A ping may be sent before the reply to the one before has come; unknown replies are ignored.
    trip.note_pong(0, now=0.75)
    trip.note_pong(1, now=1.5)
    trip.note_pong(7, now=1.5)
    assert trip.seconds == 0.5
    for number in range(10, 20):
        trip.note_ping(number, now=number)
        trip.note_pong(number, now=number + 1)
    assert trip.seconds == 1


def test_window_waits_for_steps_as_short_as_a_round_trip():
    waits = WindowWaits()
    assert not waits.is_network(0.04)
    waits.add(0.05)
    assert waits.is_network(0.04)
    assert not waits.is_network(None)
    for _ in range(8):
        waits.add(0.5)
    assert not waits.is_network(0.04)


def test_window_waits_name_the_farthest_host():
    hosts = tuple(
        HostStatus(n, f"island{n}", 1, "cpu", 1, 0, 0, (), None, seconds)
        for n, seconds in enumerate((None, 0.0004, 0.0402))
    )
    shown = str(Status("hosts", hosts, (), (), waits_for_network=True))
    assert shown.splitlines()[-1].startswith(
        "longest round trip: 40.2 ms, to host 2; steps wait for it; more"
    )
    assert "round trip" not in str(Status("local", hosts[:1], ()))

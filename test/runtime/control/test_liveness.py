"""Hosts that do not respond are lost, unless it was this process that did not run."""

from __future__ import annotations

from pathways.runtime.control.effects import PingGang
from pathways.runtime.control.gang import Gang
from pathways.runtime.control.liveness import Liveness
from pathways.runtime.control.records.events import GangClosed, GangDrained, GangKey, HostLost, LeaveRequested


def gangs() -> list[Gang]:
    hosts = ([0, 1], [2])
    return [Gang(GangKey(n, 0), of, ahead=4, grace=9.0, now=0.0) for n, of in enumerate(hosts)]


def check_until(
    liveness: Liveness, islands: list[Gang], until: float, *, responding: tuple[int, ...]
) -> list[HostLost]:
    """Returns the lost hosts, where some hosts respond to each ping at once."""
    silent: list[HostLost] = []
    now = liveness._checked
    while now < until and not silent:
        now += 0.1
        silent, pings = liveness.check(islands, now)
        for gang in islands if pings else ():
            for host in responding:
                if host in gang.pulses:
                    gang.pulses[host].heard = now
    return silent


def test_liveness_pings_all_every_half_second_at_most():
    liveness, islands = Liveness(10.0, 0.0), gangs()
    assert liveness.check(islands, 0.1) == ([], [PingGang(gang.key, 0) for gang in islands])
    assert liveness.check(islands, 0.5) == ([], [])
    assert liveness.check(islands, 0.7) == ([], [PingGang(gang.key, 1) for gang in islands])


def test_liveness_ends_hosts_silent_for_longer_than_the_heartbeat():
    islands = gangs()
    assert check_until(Liveness(2.0, 0.0), islands, 60.0, responding=(0, 1, 2)) == []
    assert check_until(Liveness(2.0, 60.0), islands, 120.0, responding=(0, 2)) == [
        HostLost(GangKey(0, 0), 1, "it has not responded for 2 seconds", is_cut=True)
    ]


def test_liveness_forgives_silence_while_this_process_is_stopped():
    """The process is stopped as by Ctrl-Z; a host that is silent afterwards, too, is lost."""
    liveness, islands = Liveness(2.0, 0.0), gangs()
    assert check_until(liveness, islands, 5.0, responding=(0, 1, 2)) == []
    silent, pings = liveness.check(islands, 3600.0)
    assert (silent, len(pings)) == ([], 2)
    assert check_until(liveness, islands, 3610.0, responding=(0, 1, 2)) == []
    (lost,) = check_until(liveness, islands, 3620.0, responding=(0, 1))
    assert lost.host == 2


def test_liveness_pings_only_hosts_that_reply():
    """A draining host is pinged; one that is terminating or lost is not."""
    liveness, (first, second) = Liveness(2.0, 0.0), gangs()
    first.handle(LeaveRequested(first.key, 1), 0.0)
    assert liveness.check([first, second], 0.1)[1] == [PingGang(first.key, 0), PingGang(second.key, 0)]
    first.handle(GangDrained(first.key), 1.0)
    second.handle(GangClosed(second.key, "is closed"), 1.0)
    assert liveness.check([first, second], 30.0) == ([], [])

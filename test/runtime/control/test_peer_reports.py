"""Choice of the hosts to end when some do not reach each other: never one for the report of another alone."""

from __future__ import annotations

from pathways.runtime.control.peer_reports import SETTLE_SECONDS, Peer, PeerReports
from pathways.runtime.control.records.events import GangKey, HostLost

A, B, C, D = (Peer(GangKey(island, 0), island) for island in range(4))
HEARTBEAT = 10.0
LATER = 5.0 + SETTLE_SECONDS


def peers() -> PeerReports:
    return PeerReports(HEARTBEAT)


def cut(all_peers: PeerReports, *pairs: tuple[Peer, Peer], now: float = 5.0) -> None:
    for one, other in pairs:
        assert not all_peers.add(one, other, "timed out", now)
        assert all_peers.add(other, one, "timed out", now)


def lost_hosts(all_peers: PeerReports, now: float = LATER) -> list[int]:
    return sorted(event.host for event in all_peers.check(now))


def test_peers_that_report_each_other_are_both_lost():
    """Both are lost as soon as others had time to report the same; a repeated report changes nothing."""
    two = peers()
    cut(two, (A, B))
    assert not two.add(A, B, "timed out", 5.1)
    assert lost_hosts(two, 5.5) == []
    assert sorted(two.check(LATER), key=lambda event: event.host) == [
        HostLost(A.gang, 0, "host 1 (island1) does not reach it: timed out", is_cut=True),
        HostLost(B.gang, 1, "host 0 (island0) does not reach it: timed out", is_cut=True),
    ]


def test_peers_lose_the_one_with_most_reports():
    many = peers()
    cut(many, (A, B), (C, B))
    cut(many, (B, D), now=5.4)
    assert lost_hosts(many) == [1]
    many.remove_gang(B.gang)
    assert lost_hosts(many, 100.0) == []


def test_peers_lose_a_reporter_without_confirmation():
    """The reporter waits for data that may never come; no other host is lost for its report."""
    one = peers()
    assert not one.add(A, B, "timed out", 0.0)
    assert not one.add(A, C, "timed out", 0.0)
    assert lost_hosts(one, HEARTBEAT) == []
    (event,) = one.check(HEARTBEAT + SETTLE_SECONDS)
    assert (event.host, event.is_cut) == (0, True)
    assert event.why == "it does not reach host 1 (island1), which does not confirm it: timed out"


def test_peers_ignore_the_report_of_one_alone():
    """A reports B; C and B report each other: C is lost as B is."""
    three = peers()
    cut(three, (B, C))
    three.add(A, B, "timed out", 5.0)
    assert lost_hosts(three) == [1, 2]


def test_peers_drop_a_report_that_is_withdrawn():
    healed = peers()
    cut(healed, (A, B))
    healed.remove(A, B)
    assert lost_hosts(healed, LATER) == []
    healed.remove(B, A)
    assert lost_hosts(healed, 1000.0) == []
    assert not healed.add(B, A, "timed out", 1000.0)


def test_peers_drop_reports_about_replaced_workers():
    anew = peers()
    cut(anew, (A, B))
    anew.remove_gang(A.gang)
    assert not anew.add(B, Peer(GangKey(0, 1), 0), "timed out", 6.0)
    assert lost_hosts(anew, 7.0) == []

"""Choice of the hosts to end when some do not reach each other: never one for the word of another alone."""

from __future__ import annotations

from pathways.runtime.control.peer_reports import SETTLE_SECONDS, Peer, PeerReports
from pathways.runtime.control.records.events import GangKey, HostLost

A, B, C, D = (Peer(GangKey(island, 0), island) for island in range(4))
HEARTBEAT = 10.0
LATER = 5.0 + SETTLE_SECONDS


def peers() -> PeerReports:
    return PeerReports(HEARTBEAT, lambda peer: f"host {peer.host}")


def cut(all_peers: PeerReports, *pairs: tuple[Peer, Peer], now: float = 5.0) -> None:
    for one, other in pairs:
        assert not all_peers.add(one, other, "timed out", now)
        assert all_peers.add(other, one, "timed out", now)


def going(all_peers: PeerReports, now: float = LATER) -> list[int]:
    return sorted(event.host for event in all_peers.check(now))


def test_peers_that_accuse_each_other_go_both():
    """As soon as others had time to say the same; said again it is nothing new."""
    two = peers()
    cut(two, (A, B))
    assert not two.add(A, B, "timed out", 5.1)
    assert going(two, 5.5) == []
    assert sorted(two.check(LATER), key=lambda event: event.host) == [
        HostLost(A.gang, 0, "host 1 does not reach it: timed out", is_cut=True),
        HostLost(B.gang, 1, "host 0 does not reach it: timed out", is_cut=True),
    ]


def test_peers_lose_the_one_that_most_accuse():
    several = peers()
    cut(several, (A, B), (C, B))
    cut(several, (B, D), now=5.4)
    assert going(several) == [1]
    several.remove_gang(B.gang)
    assert going(several, 100.0) == []


def test_peers_lose_an_accuser_without_confirmation():
    """He waits for what may never come; nobody else is ended for his word."""
    one = peers()
    assert not one.add(A, B, "timed out", 0.0)
    assert not one.add(A, C, "timed out", 0.0)
    assert going(one, HEARTBEAT) == []
    (event,) = one.check(HEARTBEAT + SETTLE_SECONDS)
    assert (event.host, event.is_cut) == (0, True)
    assert event.why == "it does not reach host 1, which does not confirm it: timed out"


def test_peers_count_no_accusation_of_one_alone():
    """A says of B what C and B say of each other: C goes as B does."""
    three = peers()
    cut(three, (B, C))
    three.add(A, B, "timed out", 5.0)
    assert going(three) == [1, 2]


def test_peers_forget_an_accusation_that_is_taken_back():
    healed = peers()
    cut(healed, (A, B))
    healed.remove(A, B)
    assert going(healed, LATER) == []
    healed.remove(B, A)
    assert going(healed, 1000.0) == []
    assert not healed.add(B, A, "timed out", 1000.0)


def test_peers_do_not_hold_accusations_against_successors():
    anew = peers()
    cut(anew, (A, B))
    anew.remove_gang(A.gang)
    assert not anew.add(B, Peer(GangKey(0, 1), 0), "timed out", 6.0)
    assert going(anew, 7.0) == []

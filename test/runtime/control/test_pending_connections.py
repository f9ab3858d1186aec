"""Limits on connections before they are authenticated."""

from __future__ import annotations

import random

from pathways.runtime.control.pending_connections import WARNING_SECONDS, PendingConnections


def test_pending_connections_drop_the_oldest_for_the_newest():
    """The oldest of the same address is dropped if that has too many; otherwise the oldest of all."""
    pending: PendingConnections[int] = PendingConnections(4, 2)
    assert [pending.add(n, "a") for n in range(3)] == [[], [], [0]]
    assert [pending.add(n, address) for n, address in ((3, "b"), (4, "c"), (5, "d"))] == [[], [], [1]]
    pending.remove(2)
    assert pending.add(6, "e") == []


def test_pending_connections_never_exceed_their_limits():
    chance = random.Random(0)
    pending: PendingConnections[int] = PendingConnections(20, 5)
    inside: dict[int, str] = {}
    for connection in range(5000):
        if inside and chance.random() < 0.3:
            removed = chance.choice([*inside])
            pending.remove(removed)
            del inside[removed]
        inside[connection] = chance.choice("abcdefgh")
        for other in pending.add(connection, inside[connection]):
            del inside[other]
        assert connection in inside
        assert len(pending) == len(inside) <= 20
        assert all(list(inside.values()).count(address) <= 5 for address in "abcdefgh")


def test_pending_connections_warn_of_an_address_once_in_a_minute():
    pending: PendingConnections[int] = PendingConnections(4, 2)
    assert [pending.should_warn(address, now) for address, now in (("a", 0.0), ("a", 1.0), ("b", 1.0))] == [
        True,
        False,
        True,
    ]
    assert pending.should_warn("a", WARNING_SECONDS)
    for n in range(5000):
        assert pending.should_warn(f"other {n}", 61.0)
    assert len(pending._warned) <= 1024

"""Limits on connections before they are authenticated."""

from __future__ import annotations

import random

from pathways.runtime.control.pending_connections import WARNING_SECONDS, PendingConnections


def test_lobby_drops_the_oldest_for_the_newest():
    """Of the same address, if it has too many; else of any."""
    pending: PendingConnections[int] = PendingConnections(4, 2)
    assert [pending.add(n, "a") for n in range(3)] == [[], [], [0]]
    assert [pending.add(n, address) for n, address in ((3, "b"), (4, "c"), (5, "d"))] == [[], [], [1]]
    pending.remove(2)
    assert pending.add(6, "e") == []


def test_lobby_never_holds_more_than_its_limits():
    chance = random.Random(0)
    pending: PendingConnections[int] = PendingConnections(20, 5)
    inside: dict[int, str] = {}
    for guest in range(5000):
        if inside and chance.random() < 0.3:
            gone = chance.choice([*inside])
            pending.remove(gone)
            del inside[gone]
        inside[guest] = chance.choice("abcdefgh")
        for other in pending.add(guest, inside[guest]):
            del inside[other]
        assert guest in inside
        assert len(pending) == len(inside) <= 20
        assert all(list(inside.values()).count(address) <= 5 for address in "abcdefgh")


def test_lobby_warns_of_an_address_once_in_a_minute():
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

"""Credits limit how much of a fetched array a worker sends."""

from __future__ import annotations

from pathways.runtime.hosts.protocol.messages import Credit, Fetch
from pathways.runtime.hosts.worker.fetch_credits import FetchCredits


def test_credits_cancel_a_fetch_before_it_begins():
    """For instance of a result of a call that ends after its client has disconnected."""
    credits = FetchCredits()
    credits.add(Credit(1, -1))
    with credits.of(Fetch(1, 7, (0,), 100, 10)) as credit:
        assert credit.acquire(50) == 0
    with credits.of(Fetch(2, 7, (0,), 100, 10)) as credit:
        credits.add(Credit(2, 5))
        assert (credit.acquire(50), credits.add(Credit(2, -1)), credit.acquire(50)) == (15, None, 0)

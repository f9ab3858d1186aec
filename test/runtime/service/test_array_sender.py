"""Credit for arrays that a client fetches: bounded in all, and given back by fetches that fail."""

from __future__ import annotations

import threading
import types
from typing import Any

from pathways.runtime.hosts.protocol.frames import CHUNK
from pathways.runtime.hosts.protocol.messages import Chunk, Credit, Fetch
from pathways.runtime.service.relaying.array_sender import (
    FIRST_BYTES,
    MAX_FETCH_BYTES,
    ArraySender,
    RelayedFetch,
)


class Worker:
    """Worker that records the credit that it is granted, and the client's connection that accepts all."""

    def __init__(self) -> None:
        self.granted: dict[int, int] = {}
        self.index = 0
        self.gang = types.SimpleNamespace(life=types.SimpleNamespace(key=types.SimpleNamespace(start=0)))
        self.arrays = types.SimpleNamespace(send=self.grant)

    def grant(self, credit: Credit) -> None:
        self.granted[credit.request] = self.granted.get(credit.request, 0) + credit.bytes

    def send_with(self, message: Any, data: memoryview) -> None:
        """No-op: the client reads all."""

    def fetch(self, number: int, size: int) -> RelayedFetch:
        relayed: Any = RelayedFetch(Fetch(number, number, (0,), size), self)  # type: ignore[arg-type]
        relayed.number = number
        return relayed


def wait_for(sender: ArraySender) -> None:
    """Waits until the thread of a sender has done all that it was given."""
    done = threading.Event()
    sender.submit(done.set)
    done.wait()


def test_array_sender_takes_back_the_credit_of_fetches_that_fail():
    worker: Any = Worker()
    sender = ArraySender(worker, lambda why: None)
    large = worker.fetch(1, 2 * MAX_FETCH_BYTES)
    sender.start(large)
    small = worker.fetch(2, 1 << 20)
    sender.start(small)
    wait_for(sender)
    assert worker.granted == {1: MAX_FETCH_BYTES}
    # One chunk comes, and then the failure.
    large.next_buffer(CHUNK)
    sender.relay(large, Chunk(1, 0, 0, CHUNK))
    for _ in range(2):
        sender.cancel(large)
    wait_for(sender)
    assert worker.granted[2] == (1 << 20) - FIRST_BYTES
    third = worker.fetch(3, 2 * MAX_FETCH_BYTES)
    sender.start(third)
    wait_for(sender)
    # The credit of the small one is in flight, and no other.
    assert MAX_FETCH_BYTES - (1 << 20) <= worker.granted[3] <= MAX_FETCH_BYTES
    sender.close()


def test_array_sender_grants_nothing_to_a_fetch_that_has_failed_already():
    worker: Any = Worker()
    sender = ArraySender(worker, lambda why: None)
    failed = worker.fetch(1, 1 << 20)
    sender.cancel(failed)
    sender.start(failed)
    wait_for(sender)
    assert not worker.granted
    sender.close()

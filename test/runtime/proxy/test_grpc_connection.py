"""Calls of gRPC as a state machine, with a client of HTTP/2 at the other end and no socket between them."""

from __future__ import annotations

import random

import hypothesis
import pytest
from hypothesis import strategies
from proxy_client import HttpClient

from pathways.runtime.proxy import grpc_connection
from pathways.runtime.proxy.grpc_connection import (
    CallCancelled,
    CallStarted,
    ConnectionLost,
    Event,
    GrpcConnection,
    MessageReceived,
    RequestsEnded,
)
from pathways.runtime.proxy.statuses import StatusCode


class Pair:
    """A client and a server; `exchange` carries bytes in both directions until none are left."""

    def __init__(self, max_message_bytes: int = 1 << 20) -> None:
        self.client = HttpClient()
        self.server = GrpcConnection(max_message_bytes)
        self.exchange()

    def exchange(self) -> list[Event]:
        events: list[Event] = []
        while True:
            sent, returned = self.client.h2.data_to_send(), self.server.bytes_to_send()
            if not sent and not returned:
                return events
            events += self.server.receive(sent) if sent else []
            self.client.receive(returned)


def test_a_call_of_one_message() -> None:
    pair = Pair()
    stream = pair.client.call("/some.Service/Do", {"some-bin": b"\x00\xff"})
    pair.client.send(stream, b"question", end=True)
    assert pair.exchange() == [
        CallStarted(stream, "/some.Service/Do", {"some-bin": b"\x00\xff"}),
        MessageReceived(stream, b"question"),
        RequestsEnded(stream),
    ]
    pair.server.send(stream, b"answer")
    pair.server.finish(stream)
    pair.exchange()
    assert pair.client.messages[stream] == [b"answer"]
    assert pair.client.statuses[stream] == (0, "")
    assert pair.server.calls == ()


def test_an_error_is_a_status_with_any_text() -> None:
    pair = Pair()
    stream = pair.client.call("/some.Service/Do")
    pair.exchange()
    pair.server.finish(stream, StatusCode.NOT_FOUND, "no é\n100%")
    pair.exchange()
    assert pair.client.statuses[stream] == (5, "no %C3%A9%0A100%25")


def test_replies_wait_for_a_client_that_does_not_read() -> None:
    pair = Pair()
    stream = pair.client.call("/some.Service/Do")
    pair.exchange()
    for _ in range(10):
        pair.server.send(stream, bytes(100_000))
    # The first window of HTTP/2 has 64 KiB.
    assert pair.server.pending_bytes(stream) > 900_000
    pair.server.finish(stream)
    pair.exchange()
    assert pair.server.pending_bytes(stream) == 0
    assert len(pair.client.messages[stream]) == 10
    assert pair.client.statuses[stream] == (0, "")


def test_a_client_gets_no_credit_for_what_is_not_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_connection, "MAX_UNHANDLED_BYTES", 100_000)
    pair = Pair()
    stream = pair.client.call("/some.Service/Do")
    pair.exchange()
    window = pair.client.h2.local_flow_control_window(stream)
    sizes = []
    while len(sizes) < 60:
        pair.client.send(stream, bytes(50_000))
        sizes += [len(event.data) for event in pair.exchange() if isinstance(event, MessageReceived)]
    assert pair.client.h2.local_flow_control_window(stream) < window - 2_000_000
    for size in sizes:
        pair.server.handled(stream, size)
    pair.exchange()
    assert pair.client.h2.local_flow_control_window(stream) > window // 2


@pytest.mark.parametrize(
    ("prefix", "status"),
    [(b"\0\x7f\xff\xff\xff", StatusCode.RESOURCE_EXHAUSTED), (b"\1\0\0\0\1", StatusCode.UNIMPLEMENTED)],
)
def test_messages_that_are_too_large_or_compressed_end_the_call(prefix: bytes, status: StatusCode) -> None:
    pair = Pair()
    stream = pair.client.call("/some.Service/Do")
    pair.client.h2.send_data(stream, prefix + b"x")
    assert pair.exchange()[1:] == [CallCancelled(stream)]
    assert pair.client.statuses[stream][0] == status
    # Other calls go on.
    other = pair.client.call("/some.Service/Do")
    pair.client.send(other, b"x")
    assert MessageReceived(other, b"x") in pair.exchange()


def test_a_message_that_is_cut_off() -> None:
    pair = Pair()
    stream = pair.client.call("/some.Service/Do")
    pair.client.h2.send_data(stream, b"\0\0\0\0\5abc", end_stream=True)
    assert pair.exchange()[1:] == [CallCancelled(stream)]
    assert pair.client.statuses[stream] == (3, "the last message is incomplete")


def test_what_is_no_call_of_grpc() -> None:
    pair = Pair()
    stream = pair.client.call("/", **{":method": "GET"})
    assert pair.exchange() == [CallCancelled(stream)]
    assert pair.client.statuses[stream][0] == StatusCode.INVALID_ARGUMENT


def test_a_binary_header_that_is_none() -> None:
    pair = Pair()
    stream = pair.client.call("/some.Service/Do", **{"some-bin": "?"})
    assert pair.exchange() == [CallCancelled(stream)]
    assert pair.client.statuses[stream] == (3, "a binary header is not base64")


def test_a_cancelled_call() -> None:
    pair = Pair()
    stream = pair.client.call("/some.Service/Do")
    pair.exchange()
    pair.client.h2.reset_stream(stream)
    assert pair.exchange() == [CallCancelled(stream)]
    pair.server.send(stream, b"too late")
    pair.server.finish(stream)
    assert pair.server.bytes_to_send() == b""


def test_the_end_of_the_connection() -> None:
    pair = Pair()
    pair.client.call("/some.Service/Do")
    pair.exchange()
    assert pair.server.receive(b"") == [ConnectionLost("closed by the client")]
    assert pair.server.calls == ()
    assert pair.server.receive(b"more") == []


@hypothesis.settings(max_examples=50)
@hypothesis.given(seed=strategies.integers(0, 2**32), count=strategies.integers(1, 8))
def test_mutated_bytes_end_calls_or_the_connection(seed: int, count: int) -> None:
    """Whatever arrives, the server reports events, and raises nothing."""
    chance = random.Random(seed)
    client, server = HttpClient(), GrpcConnection(1 << 16)
    for _ in range(3):
        stream = client.call("/some.Service/Do", {"some-bin": b"abc"})
        client.send(stream, b"question" * chance.randrange(5), end=chance.random() < 0.5)
    data = bytearray(client.h2.data_to_send())
    for _ in range(count):
        data[chance.randrange(24, len(data))] = chance.randrange(256)
    for start in range(0, len(data), 100):
        for event in server.receive(bytes(data[start : start + 100])):
            if isinstance(event, MessageReceived):
                server.handled(event.stream, len(event.data))
                server.send(event.stream, event.data)
    server.bytes_to_send()

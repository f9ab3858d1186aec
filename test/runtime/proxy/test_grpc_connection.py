"""Calls of gRPC as a state machine, with a client of HTTP/2 at the other end and no socket between them."""

from __future__ import annotations

import random

import hypothesis
import pytest
from hypothesis import strategies
from proxy_client import HttpClient

from pathways.runtime.proxy.wire import grpc_connection
from pathways.runtime.proxy.wire.events import (
    CallCancelled,
    CallStarted,
    ConnectionLost,
    Event,
    MessageReceived,
    RequestsEnded,
)
from pathways.runtime.proxy.wire.grpc_connection import GrpcConnection
from pathways.runtime.proxy.wire.statuses import StatusCode


class Pair:
    """Client and server; `exchange` carries bytes in both directions until none are left."""

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


def test_a_client_gets_no_credit_for_pending_messages(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_empty_messages_are_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_connection, "MAX_UNHANDLED_BYTES", 100 * grpc_connection.MESSAGE_OVERHEAD)
    pair = Pair(max_message_bytes=1 << 23)
    stream = pair.client.call("/some.Service/Do")
    for _ in range(101):
        pair.client.send(stream, b"")
    pair.client.h2.send_data(stream, b"\0\0\x7f\0\0")
    pair.exchange()
    window = pair.client.h2.local_flow_control_window(stream)
    for _ in range(400):
        pair.client.h2.send_data(stream, bytes(10_000))
        pair.exchange()
    assert pair.client.h2.local_flow_control_window(stream) == window - 4_000_000
    pair.server.handled(stream, 0, 101)
    pair.exchange()
    assert pair.client.h2.local_flow_control_window(stream) > window


def test_small_replies_do_not_wait_for_large_ones() -> None:
    pair = Pair()
    large, small = pair.client.call("/some.Service/Do"), pair.client.call("/some.Service/Do")
    pair.exchange()
    pair.server.send(large, bytes(60_000))
    pair.server.send(small, b"small")
    pair.client.receive(b"".join(pair.server.buffers_to_send(20_000)))
    assert pair.client.messages == {large: [], small: [b"small"]}


def test_parts_of_a_message_are_not_copied() -> None:
    pair = Pair()
    stream = pair.client.call("/some.Service/Do")
    pair.exchange()
    value = bytes(range(256)) * 1000
    pair.server.send(stream, b"before", [b"head", memoryview(value)], b"after")
    sent = pair.server.buffers_to_send()
    assert any(isinstance(part, memoryview) and part.obj is value for part in sent)
    pair.client.receive(b"".join(sent))
    pair.exchange()
    assert pair.client.messages[stream] == [b"before", b"head" + value, b"after"]


def test_frames_are_created_when_they_can_be_written() -> None:
    pair = Pair()
    pair.client.h2.increment_flow_control_window(1 << 24)
    stream = pair.client.call("/some.Service/Do")
    pair.client.h2.increment_flow_control_window(1 << 24, stream)
    pair.exchange()
    pair.server.send(stream, bytes(10_000_000))
    assert 1000 <= sum(map(len, pair.server.buffers_to_send(1000))) < 20_000
    assert pair.server.pending_bytes(stream) > 9_900_000


def test_frames_may_arrive_in_any_pieces() -> None:
    client, server = HttpClient(), GrpcConnection()
    stream = client.call("/some.Service/Do", {"some-bin": b"abc"})
    client.send(stream, b"one")
    client.send(stream, b"")
    client.send(stream, bytes(20_000), end=True)
    sent = client.h2.data_to_send()
    events = [event for start in range(len(sent)) for event in server.receive(sent[start : start + 1])]
    assert events == [
        CallStarted(stream, "/some.Service/Do", {"some-bin": b"abc"}),
        MessageReceived(stream, b"one"),
        MessageReceived(stream, b""),
        MessageReceived(stream, bytes(20_000)),
        RequestsEnded(stream),
    ]


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"\0\0\2\0\x08\0\0\0\1\0a", "a frame of data is padded"),
        (b"\x10\0\1\0\0\0\0\0\1", "a frame of 1048577 bytes"),
        (b"\xff\xff\xff\x7f\0\0\0\0\1", "a frame of 16777215 bytes"),
        (b"\0\0\1\0\0\0\0\0\x07a", "Invalid input ConnectionInputs.RECV_DATA"),
    ],
)
def test_frames_that_close_the_connection(frame: bytes, reason: str) -> None:
    pair = Pair()
    pair.client.call("/some.Service/Do")
    pair.exchange()
    (lost,) = pair.server.receive(frame)
    assert isinstance(lost, ConnectionLost)
    assert lost.reason.startswith("invalid HTTP/2: ")
    assert reason in lost.reason or frame[8] == 7


def test_more_data_than_the_window_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_connection, "MAX_UNHANDLED_BYTES", 0)
    pair = Pair()
    stream = pair.client.call("/some.Service/Do")
    pair.exchange()
    size = 1 << 20
    frame = size.to_bytes(3, "big") + b"\0\0" + stream.to_bytes(4, "big")
    message = b"\0" + (size - 5).to_bytes(4, "big") + bytes(size - 5)
    for _ in range(grpc_connection.STREAM_WINDOW // size):
        assert len(pair.server.receive(frame + message)) == 1
    assert pair.server.receive(frame + message) == [
        ConnectionLost("invalid HTTP/2: more data than the window allows")
    ]


def test_data_of_a_refused_call_is_dropped() -> None:
    pair = Pair(max_message_bytes=10)
    stream = pair.client.call("/some.Service/Do")
    pair.client.send(stream, bytes(50_000))
    pair.client.send(stream, b"more", end=True)
    assert pair.exchange()[1:] == [CallCancelled(stream)]
    assert pair.client.statuses[stream][0] == StatusCode.RESOURCE_EXHAUSTED


def test_data_after_the_end_of_a_call() -> None:
    pair = Pair()
    stream = pair.client.call("/some.Service/Do")
    pair.client.send(stream, b"question", end=True)
    pair.exchange()
    pair.server.receive(b"\0\0\6\0\0" + stream.to_bytes(4, "big") + b"\0\0\0\0\1x")
    pair.server.send(stream, b"answer")
    assert b"answer" not in pair.server.bytes_to_send()


def test_a_client_that_reads_no_answers_to_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_connection, "MAX_CONTROL_BYTES", 10_000)
    pair = Pair()
    assert not pair.server.is_congested
    ping = b"\0\0\x08\6\0\0\0\0\0" + bytes(8)
    pair.server.receive(ping * 1000)
    assert pair.server.is_congested
    while pair.server.buffers_to_send():
        pass
    assert not pair.server.is_congested


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
    # Other calls continue.
    other = pair.client.call("/some.Service/Do")
    pair.client.send(other, b"x")
    assert MessageReceived(other, b"x") in pair.exchange()


def test_a_message_that_is_cut_off() -> None:
    pair = Pair()
    stream = pair.client.call("/some.Service/Do")
    pair.client.h2.send_data(stream, b"\0\0\0\0\5abc", end_stream=True)
    assert pair.exchange()[1:] == [CallCancelled(stream)]
    assert pair.client.statuses[stream] == (3, "the last message is incomplete")


def test_invalid_calls() -> None:
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


def test_a_closed_connection() -> None:
    pair = Pair()
    pair.client.call("/some.Service/Do")
    pair.exchange()
    assert pair.server.receive(b"") == [ConnectionLost("closed by the client")]
    assert pair.server.calls == ()
    assert pair.server.receive(b"more") == []


@hypothesis.settings(max_examples=50)
@hypothesis.given(seed=strategies.integers(0, 2**32), count=strategies.integers(1, 8))
def test_mutated_bytes_end_calls_or_close_the_connection(seed: int, count: int) -> None:
    """For any bytes, the server reports events, and raises no exception."""
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

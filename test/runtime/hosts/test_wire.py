"""Messages on a connection, and the errors of bytes that are no message."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathways.runtime.hosts.protocol import frames, wire
from pathways.runtime.hosts.protocol.frames import decode_for_controller, decode_for_worker, encode
from pathways.runtime.hosts.protocol.messages import PROTOCOL, Done, Free, MessageError
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded

HEAD = b"PW" + bytes([PROTOCOL, 0])
"""First bytes of a frame."""


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "these bytes are not a message of pathways"),
        (b"PW\x63\x00\x00\x00\x00\x01\x00\x00\x00\x00a", "the peer speaks version 99 of the protocol"),
        (HEAD + b"\xff\xff\xff\xff\x00\x00\x00\x00", "a message of 4294967295 bytes is longer than"),
        (HEAD + b"\x00\x00\x00\x03\x00\x00\x00\x00abc", "a message cannot be read"),
    ],
)
def test_wire_refuses_other_bytes(pair, sent, message):
    ours, theirs = pair
    theirs.sendall(sent)
    with pytest.raises(MessageError, match=message):
        Connection(ours, frames.decode_for_controller).receive()


@given(st.binary(max_size=200))
def test_wire_survives_any_bytes(body):
    for decode in (frames.decode_for_worker, frames.decode_for_controller):
        with contextlib.suppress(MessageError):
            decode(body)


def test_wire_reads_long_messages(pair):
    """For instance one with the errors of all results of a large program."""
    ours, theirs = pair
    sender = Connection(theirs, decode_for_worker)
    receiver = Connection(ours, decode_for_controller)
    sent = Done(3, None, dict.fromkeys(range(1000), "no memory " * 20), 0.5)
    thread = threading.Thread(target=sender.send, args=(sent, Done(4, None, {}, 0.5)), daemon=True)
    thread.start()
    got: list[object] = []
    while len(got) < 2:
        assert receiver.wait(5)
        receiver.process_available(got.append)
    assert got == [sent, Done(4, None, {}, 0.5)]


def test_wire_limits_messages_with_a_deadline(pair):
    """Neither a slow message nor one that claims a large size is waited for."""
    ours, theirs = pair
    receiver = Connection(ours, decode_for_controller)
    receiver.set_deadline(0.3, 100)
    theirs.sendall(HEAD + b"\x00\x00\x00\x65\x00\x00\x00\x00")
    with pytest.raises(MessageError, match="a message of 101 bytes is longer than 100"):
        receiver.receive()

    def drip() -> None:
        with contextlib.suppress(OSError):
            for byte in HEAD + b"\x00\x00\x00\x64\x00\x00\x00\x00" + bytes(100):
                theirs.sendall(bytes([byte]))
                time.sleep(0.1)

    receiver.set_deadline(0.5, 100)
    threading.Thread(target=drip, daemon=True).start()
    with pytest.raises(ConnectionEnded, match="no reply in time"):
        receiver.receive()


def test_wire_sends_a_buffer_in_order_as_the_peer_accepts_it(pair):
    """Bytes are only sent by `flush`, which never waits; `close` sends as many as there is room for."""
    one, other = (Connection(sock, decode_for_worker) for sock in pair)
    notified: list[int] = []
    one.buffer_sends(lambda: notified.append(1))
    frames = [encode(Free((n,))) for n in range(3)]
    one.send_frames(*frames)
    one.send(Free((3,)))
    assert (len(notified), one.has_unsent()) == (1, True)
    assert not other.wait(0)
    one.flush()
    assert not one.has_unsent()
    assert [other.receive() for _ in range(4)] == [Free((n,)) for n in range(4)]
    large = Free(tuple(range(1 << 16)))
    for _ in range(64):
        one.send(large)
    received = []
    reader = threading.Thread(target=lambda: received.extend(iter(other.receive, Free((4,)))))
    reader.start()
    while one.has_unsent():
        one.flush()
    one.send(Free((4,)))
    one.close()
    reader.join()
    assert received == [large] * 64


def test_wire_closes_while_a_sender_waits(pair):
    """The peer does not read, so that the sender waits until the connection is closed."""
    one = Connection(pair[0], decode_for_worker)
    with ThreadPoolExecutor(2) as threads:
        sender = threads.submit(one.send_frames, bytes(1 << 26))
        while not one._sending.locked():
            time.sleep(0.01)
        try:
            threads.submit(one.close).result(timeout=10)
        finally:
            pair[1].close()
        with pytest.raises(ConnectionEnded):
            sender.result(timeout=10)


def test_wire_disconnects_a_peer_that_never_reads(pair, monkeypatch):
    monkeypatch.setattr(wire, "MAX_SEND_BUFFER", 1 << 16)
    one = Connection(pair[0], decode_for_worker)
    one.buffer_sends(lambda: None)
    frame = encode(Free((1, 2, 3)))
    with pytest.raises(ConnectionEnded, match="the peer has not read the last 65536 bytes"):
        one.send_frames(*[frame] * (1 << 16))

"""Who may speak to whom: the handshake, and what becomes of anything that is no message."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathways.runtime.hosts import frames, messages
from pathways.runtime.hosts.frames import decode_for_controller, decode_for_worker
from pathways.runtime.hosts.messages import Challenge, Done, Hello, MessageError, Ping, Pong, Run
from pathways.runtime.hosts.wire import Connection, ConnectionEnded, greet_controller, greet_worker

SECRET, OTHER = b"s" * 32, b"o" * 32


def hello(proof: bytes, nonce: bytes) -> Hello:
    return Hello(proof, nonce, messages.versions(), 7, 0, "steps")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with ours, theirs:
        yield ours, theirs


def test_both_prove_themselves_and_then_talk(pair):
    ours, theirs = pair
    connections: list[Connection] = []
    worker = threading.Thread(target=lambda: connections.append(greet_controller(theirs, SECRET, hello)))
    worker.start()
    to_worker, said = greet_worker(ours, SECRET)
    worker.join()
    assert said.host == 7
    to_worker.send(Ping(1), Run(2, 3, (4,)))
    assert [connections[0].receive(), connections[0].receive()] == [Ping(1), Run(2, 3, (4,))]
    connections[0].send(Pong(1))
    assert to_worker.receive() == Pong(1)
    connections[0].close()
    with pytest.raises(ConnectionEnded):
        to_worker.receive()


def test_a_worker_that_does_not_know_the_secret_is_refused(pair):
    ours, theirs = pair

    def stranger() -> None:
        with pytest.raises((MessageError, ConnectionEnded)):
            greet_controller(theirs, OTHER, hello)

    thread = threading.Thread(target=stranger)
    thread.start()
    with pytest.raises(MessageError, match="a stranger tried to connect"):
        greet_worker(ours, SECRET)
    thread.join()


def test_a_controller_that_does_not_know_the_secret_is_refused(pair):
    ours, theirs = pair

    def controller() -> None:
        connection: Connection = Connection(ours, frames.decode_for_controller)
        connection.send(Challenge(messages.PROTOCOL, b"n" * 32))
        connection.receive()
        connection.send(messages.Welcome(b"x" * 32))

    thread = threading.Thread(target=controller)
    thread.start()
    with pytest.raises(MessageError, match="the controller does not know the secret"):
        greet_controller(theirs, SECRET, hello)
    thread.join()


def test_a_proof_cannot_be_used_again(pair):
    """What a worker said once is the answer to another nonce."""
    ours, theirs = pair
    recorded: list[bytes] = []

    def record(proof: bytes, nonce: bytes) -> Hello:
        recorded.append(frames.encode(hello(proof, nonce)))
        return hello(proof, nonce)

    thread = threading.Thread(target=lambda: greet_controller(theirs, SECRET, record))
    thread.start()
    greet_worker(ours, SECRET)
    thread.join()
    with socket.create_server(("127.0.0.1", 0)) as server:
        again = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    with again, accepted:
        again.sendall(recorded[0])
        with pytest.raises(MessageError, match="a stranger tried to connect"):
            greet_worker(accepted, SECRET)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "these bytes are no message of pathways"),
        (b"PW\x63\x00\x00\x00\x00\x01\x00\x00\x00\x00a", "the other side speaks version 99 of the protocol"),
        (b"PW\x05\x00\xff\xff\xff\xff\x00\x00\x00\x00", "a message of 4294967295 bytes is longer than"),
        (b"PW\x05\x00\x00\x00\x00\x03\x00\x00\x00\x00abc", "a message cannot be read"),
    ],
)
def test_what_is_no_message_is_refused(pair, sent, message):
    ours, theirs = pair
    theirs.sendall(sent)
    with pytest.raises(MessageError, match=message):
        Connection(ours, frames.decode_for_controller).receive()


@given(st.binary(max_size=200))
def test_no_bytes_harm_a_reader(body):
    for decode in (frames.decode_for_worker, frames.decode_for_controller):
        with contextlib.suppress(MessageError):
            decode(body)


def test_a_message_that_is_longer_than_what_is_read_at_once(pair):
    """Such as one that says of each result of a large program what is wrong with it."""
    ours, theirs = pair
    sender = Connection(theirs, decode_for_worker)
    receiver = Connection(ours, decode_for_controller)
    sent = Done(3, None, dict.fromkeys(range(1000), "no memory " * 20))
    thread = threading.Thread(target=sender.send, args=(sent, Done(4, None, {})), daemon=True)
    thread.start()
    got: list[object] = []
    began = time.monotonic()
    while len(got) < 2:
        assert receiver.wait(5)
        receiver.act_on_some(got.append)
        assert time.monotonic() - began < 10
    assert got == [sent, Done(4, None, {})]

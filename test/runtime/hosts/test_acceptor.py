"""An acceptor with real sockets: it accepts authenticated peers, whatever strangers do at the same time."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import queue
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pathways.runtime.hosts.protocol import acceptor
from pathways.runtime.hosts.protocol.acceptor import Acceptor, open_connection
from pathways.runtime.hosts.protocol.frames import decode_for_controller, decode_for_worker
from pathways.runtime.hosts.protocol.handshake import ServerHandshake
from pathways.runtime.hosts.protocol.messages import PROTOCOL, Ping, Pong, Purpose
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded

SECRET = b"s" * 32
STEPS = Purpose("steps", "worker", 7, 0, "controller")

Accepted = queue.SimpleQueue[tuple[Connection[Any], ServerHandshake]]


@pytest.fixture
def server() -> Iterator[tuple[tuple[str, int], Accepted]]:
    """Address of an acceptor, and the connections that it has accepted."""
    accepted: Accepted = queue.SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as sock:
        make_handshake = functools.partial(ServerHandshake, SECRET, lambda _: True)
        Acceptor(sock, make_handshake, decode_for_controller, lambda *peer: accepted.put(peer))
        yield sock.getsockname(), accepted
        sock.shutdown(socket.SHUT_RDWR)


def test_acceptor_accepts_authenticated_peers(server):
    address, accepted = server
    worker = open_connection(socket.create_connection(address), SECRET, STEPS, decode_for_worker)
    connection, handshake = accepted.get(timeout=5)
    assert (handshake.purpose, connection.peer) == (STEPS, "127.0.0.1")
    connection.send(Ping(1))
    assert worker.receive() == Ping(1)
    worker.send(Pong(1))
    assert connection.receive() == Pong(1)
    worker.close()
    with pytest.raises(ConnectionEnded):
        connection.receive()
    connection.close()


def test_acceptor_limits_time_and_memory_of_strangers(server, caplog):
    """More of them than may be pending are silent, send slowly, or announce a gigabyte."""
    address, accepted = server
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    strangers = []
    words = (b"", b"PW", b"PW%c\x00\x3f\xff\xff\xff\x00\x00\x00\x00" % PROTOCOL, b"GET / HTTP/1.1\r\n\r\n")
    for n in range(3 * acceptor._MAX_PENDING):
        sock = socket.create_connection(address)
        with contextlib.suppress(OSError):
            sock.sendall(words[n % 4])
        strangers.append(sock)
        if n % 16 == 0:
            open_connection(socket.create_connection(address), SECRET, STEPS, decode_for_worker).close()
            connection, handshake = accepted.get(timeout=5)
            assert handshake.purpose == STEPS
            connection.close()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    for sock in strangers:
        sock.close()
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == 1
    assert warned[0].startswith("refused a connection from 127.0.0.1: ")


def test_acceptor_disconnects_slow_peers(server, monkeypatch):
    monkeypatch.setattr(acceptor, "HANDSHAKE_SECONDS", 0.3)
    address, _ = server
    with socket.create_connection(address) as sock:
        began = time.monotonic()
        drip = threading.Thread(target=_drip, args=(sock,), daemon=True)
        drip.start()
        sock.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""
        assert time.monotonic() - began < 3


def test_acceptor_continues_without_new_threads(server, monkeypatch, caplog):
    address, accepted = server
    with monkeypatch.context() as patch:
        patch.setattr(acceptor, "start_thread", _no_thread)
        with pytest.raises(ConnectionEnded):
            open_connection(socket.create_connection(address), SECRET, STEPS, decode_for_worker)
    assert [record.getMessage() for record in caplog.records] == [
        "refused a connection from 127.0.0.1: cannot start a new thread"
    ]
    open_connection(socket.create_connection(address), SECRET, STEPS, decode_for_worker).close()
    accepted.get(timeout=5)[0].close()


def test_acceptor_continues_with_too_many_open_files(server, monkeypatch, caplog):
    """A peer waits until a file is closed."""
    address, accepted = server
    waits = threading.Event()
    refuses = iter(range(3))

    def pause(_: float) -> None:
        waits.set()

    monkeypatch.setattr(acceptor.time, "sleep", pause)
    monkeypatch.setattr(socket.socket, "accept", _accept_later(socket.socket.accept, refuses))
    for _ in range(2):  # The acceptor waits for the first in the original `accept`.
        open_connection(socket.create_connection(address), SECRET, STEPS, decode_for_worker).close()
        accepted.get(timeout=5)[0].close()
    assert waits.is_set()
    assert [record.getMessage() for record in caplog.records] == [
        "cannot accept a connection; retrying: Too many open files"
    ]


def _no_thread(*_: object) -> None:
    raise RuntimeError("cannot start a new thread")


def _accept_later(accept: Callable[..., Any], refuses: Iterator[int]) -> Callable[..., Any]:
    def later(sock: socket.socket) -> Any:
        for _ in refuses:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(sock)

    return later


def _drip(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        for byte in b"PW%c\x00\x00\x00\x00\x64\x00\x00\x00\x00" % PROTOCOL + bytes(100):
            sock.sendall(bytes([byte]))
            time.sleep(0.1)

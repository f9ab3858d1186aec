"""Workers find out that they cannot reach each other, though both can be reached by the controller."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from cable import Cable

from pathways.runtime.hosts.worker.probes import Probes

SECRET, OTHER = b"s" * 32, b"o" * 32


class Lost:
    """What `Probes` says."""

    def __init__(self) -> None:
        self.peers: list[tuple[int, str]] = []
        self.said = threading.Event()
        self.found = threading.Event()

    def __call__(self, host: int, address: str, why: str) -> None:
        self.peers.append((host, why))
        self.said.set()


class Network:
    """Makes probes and cables, and ends them with the test."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack

    def probes(self, lost: Lost, host: int = 7, secret: bytes = SECRET) -> Probes:
        server = socket.create_server(("127.0.0.1", 0))
        made = Probes(server, secret, host, 0, lost, lambda *_: lost.found.set(), 1.0)
        self._stack.callback(made.close)
        return made

    def cable(self, probes: Probes) -> Cable:
        return self._stack.enter_context(contextlib.closing(Cable(probes.address)))


@pytest.fixture
def network() -> Iterator[Network]:
    with contextlib.ExitStack() as stack:
        yield Network(stack)


def test_probes_notice_a_peer_that_is_cut_off(network):
    lost = Lost()
    cable = network.cable(network.probes(Lost(), 3))
    network.probes(lost).watch({3: cable.address})
    time.sleep(1.5)
    assert not lost.peers
    cable.cut = True
    assert lost.said.wait(5)
    assert lost.peers == [(3, "the connection has ended: no reply in time")]


def test_probes_notice_a_peer_that_is_back(network):
    """It is said once that it was lost, and once that it is found."""
    lost = Lost()
    cable = network.cable(network.probes(Lost(), 3))
    network.probes(lost).watch({3: cable.address})
    cable.cut = True
    assert lost.said.wait(5)
    assert not lost.found.is_set()
    cable.cut = False
    assert lost.found.wait(5)
    assert len(lost.peers) == 1


def test_probes_watch_a_peer_once(network):
    lost = Lost()
    own = network.probes(lost)
    for _ in range(3):
        own.watch({1: "127.0.0.1:1"})
    assert lost.said.wait(5)
    time.sleep(0.2)
    assert [host for host, _ in lost.peers] == [1]


def test_probes_refuse_strangers_and_other_peers(network):
    for host, secret in ((1, OTHER), (2, SECRET)):
        lost = Lost()
        network.probes(lost).watch({1: network.probes(Lost(), host, secret).address})
        assert lost.said.wait(5)
        assert "has ended" in lost.peers[0][1]


def test_probes_leave_no_thread_or_socket(network):
    before = {thread.ident for thread in threading.enumerate()}
    lost = Lost()
    own, peer = network.probes(lost), network.probes(Lost(), 3)
    own.watch({3: network.cable(peer).address})
    time.sleep(0.3)
    own.close()
    peer.close()
    until = time.monotonic() + 5
    while {thread.ident for thread in threading.enumerate() if "pathways" in thread.name} - before:
        assert time.monotonic() < until, threading.enumerate()
        time.sleep(0.02)

"""Workers find out that they cannot reach each other, though both can be reached by the controller."""

from __future__ import annotations

import socket
import threading
import time

from cable import Cable

from pathways.runtime.hosts.worker.probing import Probes

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


def probes(lost: Lost, host: int = 7, secret: bytes = SECRET) -> Probes:
    return Probes(
        socket.create_server(("127.0.0.1", 0)), secret, host, 0, lost, lambda *_: lost.found.set(), 1.0
    )


def test_a_peer_that_is_cut_off_is_noticed():
    lost = Lost()
    cable = Cable(probes(Lost(), 3).address)
    probes(lost).watch({3: cable.address})
    time.sleep(1.5)
    assert not lost.peers
    cable.cut = True
    assert lost.said.wait(5)
    assert lost.peers == [(3, "the connection has ended: no reply in time")]


def test_a_peer_that_is_reached_again():
    """It is said once that it was lost, and once that it is found."""
    lost = Lost()
    cable = Cable(probes(Lost(), 3).address)
    probes(lost).watch({3: cable.address})
    cable.cut = True
    assert lost.said.wait(5)
    assert not lost.found.is_set()
    cable.cut = False
    assert lost.found.wait(5)
    assert len(lost.peers) == 1


def test_a_peer_is_watched_once():
    lost = Lost()
    own = probes(lost)
    for _ in range(3):
        own.watch({1: "127.0.0.1:1"})
    assert lost.said.wait(5)
    time.sleep(0.2)
    assert [host for host, _ in lost.peers] == [1]


def test_a_stranger_is_no_peer_and_no_peer_is_another_one():
    for host, secret in ((1, OTHER), (2, SECRET)):
        lost = Lost()
        probes(lost).watch({1: probes(Lost(), host, secret).address})
        assert lost.said.wait(5)
        assert "has ended" in lost.peers[0][1]

"""Heartbeats show that two workers cannot reach each other, though the controller reaches both."""

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


class Reports:
    """Reports of `Probes`.

    Attributes:
      lost: the lost peers, each with the error.
      has_lost: is set when there is one.
      has_found: is set when a lost peer answers again.
    """

    def __init__(self) -> None:
        self.lost: list[tuple[int, str]] = []
        self.has_lost = threading.Event()
        self.has_found = threading.Event()

    def on_lost(self, host: int, address: str, why: str) -> None:
        self.lost.append((host, why))
        self.has_lost.set()


class Network:
    """Factory of probes and cables, which are closed with the test."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack

    def probes(self, reports: Reports, host: int = 7, secret: bytes = SECRET) -> Probes:
        server = socket.create_server(("127.0.0.1", 0))
        on_lost, on_found = reports.on_lost, lambda *_: reports.has_found.set()
        probes = Probes(server, secret, host, 0, on_lost, on_found, 1.0)
        self._stack.callback(probes.close)
        return probes

    def cable(self, probes: Probes) -> Cable:
        return self._stack.enter_context(contextlib.closing(Cable(probes.address)))


@pytest.fixture
def network() -> Iterator[Network]:
    with contextlib.ExitStack() as stack:
        yield Network(stack)


def test_probes_notice_a_peer_that_is_cut_off(network):
    reports = Reports()
    cable = network.cable(network.probes(Reports(), 3))
    network.probes(reports).watch({3: cable.address})
    time.sleep(1.5)
    assert not reports.lost
    cable.cut = True
    assert reports.has_lost.wait(5)
    assert reports.lost == [(3, "the connection has ended: no reply in time")]


def test_probes_notice_a_peer_that_is_back(network):
    """The loss is reported once, and so is the recovery."""
    reports = Reports()
    cable = network.cable(network.probes(Reports(), 3))
    network.probes(reports).watch({3: cable.address})
    cable.cut = True
    assert reports.has_lost.wait(5)
    assert not reports.has_found.is_set()
    cable.cut = False
    assert reports.has_found.wait(5)
    assert len(reports.lost) == 1


def test_probes_watch_a_peer_once(network):
    reports = Reports()
    own = network.probes(reports)
    for _ in range(3):
        own.watch({1: "127.0.0.1:1"})
    assert reports.has_lost.wait(5)
    time.sleep(0.2)
    assert [host for host, _ in reports.lost] == [1]


def test_probes_refuse_strangers_and_other_peers(network):
    for host, secret in ((1, OTHER), (2, SECRET)):
        reports = Reports()
        network.probes(reports).watch({1: network.probes(Reports(), host, secret).address})
        assert reports.has_lost.wait(5)
        assert "has ended" in reports.lost[0][1]


def test_probes_leave_no_thread_or_socket(network):
    before = {thread.ident for thread in threading.enumerate()}
    reports = Reports()
    own, peer = network.probes(reports), network.probes(Reports(), 3)
    own.watch({3: network.cable(peer).address})
    time.sleep(0.3)
    own.close()
    peer.close()
    until = time.monotonic() + 5
    while {thread.ident for thread in threading.enumerate() if "pathways" in thread.name} - before:
        assert time.monotonic() < until, threading.enumerate()
        time.sleep(0.02)

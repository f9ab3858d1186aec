"""Helper process that serves the snapshots of a service."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import psutil
import pytest
from status_samples import client, snapshot

from pathways.runtime.metrics import feed as feeds
from pathways.runtime.metrics.feed import HELPER, MetricsError, MetricsFeed
from pathways.runtime.metrics.snapshots import Snapshot

pytestmark = pytest.mark.process


@pytest.fixture
def feed() -> Iterator[MetricsFeed]:
    ticks = iter(range(10**9))
    with MetricsFeed(
        ("127.0.0.1", 0), lambda: snapshot(next(ticks), clients=(client("ann"),)), seconds=0.05
    ) as feed:
        wait_until(lambda: get(feed, "/")[0] == 200)
        yield feed


def get(feed: MetricsFeed, path: str, method: str = "GET") -> tuple[int, str, bytes]:
    """Returns the status, the type and the body of a reply; 0 where there is none."""
    request = urllib.request.Request("http://{}:{}".format(*feed.address) + path, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, reply.headers["Content-Type"], reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read()
    except OSError:
        return 0, "", b""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def helpers() -> list[int]:
    """Returns the processes of the helpers of this process that run."""
    running = [each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE]
    return [each.pid for each in running if HELPER in each.cmdline()]


def test_the_helper_serves_three_paths(feed: MetricsFeed) -> None:
    assert get(feed, "/")[1] == "text/html; charset=utf-8"
    assert b"pathways_clients 1.0" in get(feed, "/metrics")[2]
    status, content_type, body = get(feed, "/status.json?x=1")
    assert (status, content_type) == (200, "application/json")
    assert json.loads(body)["clients"][0]["name"] == "ann"
    assert get(feed, "/", "HEAD")[::2] == (200, b"")
    for path in ("/favicon.ico", "/metrics/", "/../etc/passwd", "/metrics%2f"):
        assert get(feed, path)[0] == 404
    assert get(feed, "/", "POST")[0] == 501


def test_pages_are_of_the_last_snapshot(feed: MetricsFeed) -> None:
    first = json.loads(get(feed, "/status.json")[2])["time"]
    wait_until(lambda: json.loads(get(feed, "/status.json")[2])["time"] > first + 3)


def test_a_helper_that_is_killed_is_started_again_at_the_same_port(
    feed: MetricsFeed, caplog: pytest.LogCaptureFixture
) -> None:
    (helper,) = helpers()
    os.kill(helper, signal.SIGKILL)
    wait_until(lambda: helpers() not in ([helper], []))
    wait_until(lambda: get(feed, "/")[0] == 200)
    assert "the helper of the metrics has ended (exit code -9): it is started again" in caplog.text


def test_a_helper_that_is_stopped_is_replaced_and_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "_PATIENCE", 0.3)
    # Larger than the buffer of a pipe.
    large = snapshot(1, clients=tuple(client(f"client{n}") for n in range(1000)))
    with MetricsFeed(("127.0.0.1", 0), lambda: large, seconds=0.05) as feed:
        wait_until(lambda: get(feed, "/")[0] == 200)
        (helper,) = helpers()
        os.kill(helper, signal.SIGSTOP)
        wait_until(lambda: helpers() not in ([helper], []))
        wait_until(lambda: get(feed, "/status.json")[0] == 200)
        (helper,) = helpers()
        os.kill(helper, signal.SIGSTOP)
    assert helpers() == []


def test_strangers_at_the_port_delay_nobody(feed: MetricsFeed) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            silent = stack.enter_context(socket.create_connection(feed.address))
            silent.sendall(b"GET / HT")
        garbage = stack.enter_context(socket.create_connection(feed.address))
        garbage.sendall(os.urandom(1 << 16))
        assert get(feed, "/metrics")[0] == 200
    # More than it serves at a time: others are closed, and it goes on.
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_connection(feed.address, timeout=5))
    wait_until(lambda: get(feed, "/metrics")[0] == 200)


def test_many_readers_at_once(feed: MetricsFeed) -> None:
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(get(feed, "/metrics")[0])) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 16


def test_a_feed_ends_its_helper_and_frees_its_port() -> None:
    with MetricsFeed(("127.0.0.1", 0), lambda: None, seconds=0.05) as feed:
        address = feed.address
        wait_until(lambda: get(feed, "/")[0] == 503)
        assert b"the service has sent no snapshot yet" in get(feed, "/")[2]
    assert helpers() == []
    with socket.create_server(address):
        pass


def test_a_snapshot_that_fails_is_logged_and_the_next_one_is_served(caplog: pytest.LogCaptureFixture) -> None:
    taken = 0

    def take() -> Snapshot:
        nonlocal taken
        taken += 1
        if taken < 10:
            raise RuntimeError("no answer")
        return snapshot(taken)

    with MetricsFeed(("127.0.0.1", 0), take, seconds=0.02) as feed:
        wait_until(lambda: get(feed, "/")[0] == 200)
    # Once until one succeeds.
    assert caplog.text.count("cannot take a snapshot for the metrics") == 1


def test_an_address_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(MetricsError, match=rf"cannot listen at 127.0.0.1:{port}: Address already in use"):
            MetricsFeed(("127.0.0.1", port), lambda: None)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MetricsError, match=r"pip install 'pathways-mlir\[metrics\]'"):
        MetricsFeed(("127.0.0.1", 0), lambda: None)

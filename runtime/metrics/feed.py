"""Feed of snapshots from a service to the helper process that serves them."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

import msgspec

from pathways.runtime.metrics.snapshots import Snapshot
from pathways.runtime.resources.threads import start_thread

HELPER = "pathways.runtime.metrics.helper"
"""The module that runs as the helper process."""

SNAPSHOT_SECONDS = 1.0
"""Seconds between snapshots."""

_BACKLOG = 64

_PATIENCE = 5.0
"""Seconds for which a helper may not read, or not end."""

log = logging.getLogger("pathways")


class MetricsError(ValueError):
    """Error of metrics that cannot be served."""


class MetricsFeed:
    """Helper process that serves snapshots, from `__enter__` to `__exit__`; one that ends is started again.

    Args:
      address: the address and port of the server.
      take: returns a snapshot; None if the service does not answer in time.
      seconds: the time between snapshots.

    Raises:
      MetricsError: prometheus_client is not installed, or the address is not free.
    """

    def __init__(
        self, address: tuple[str, int], take: Callable[[], Snapshot | None], seconds: float = SNAPSHOT_SECONDS
    ) -> None:
        if importlib.util.find_spec("prometheus_client") is None:
            raise MetricsError("[metrics] needs prometheus_client: pip install 'pathways-mlir[metrics]'")
        # Bound here, so that an address in use is reported at once, and a new helper has the same one.
        self._server = socket.socket(socket.AF_INET)
        try:
            self._server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._server.bind(address)
            self._server.listen(_BACKLOG)
        except OSError as error:
            self._server.close()
            place = f"{address[0]}:{address[1]}"
            raise MetricsError(f"[metrics]: cannot listen at {place}: {error.strerror or error}") from None
        self._take = take
        self._seconds = seconds
        self._closed = threading.Event()
        self._done = threading.Event()

    @property
    def address(self) -> tuple[str, int]:
        """The address and port of the server."""
        host, port = self._server.getsockname()
        return host, port

    def __enter__(self) -> MetricsFeed:
        start_thread(self._run, "metrics")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._done.wait()

    def _run(self) -> None:
        try:
            helper = self._start()
        except OSError as error:
            log.warning("the metrics are not served: %s", error)
            self._server.close()
            self._done.set()
            return
        has_failed = False
        try:
            while True:
                began = time.monotonic()
                try:
                    snapshot = self._take()
                    has_failed = False
                except Exception:
                    if not has_failed:
                        log.exception("cannot take a snapshot for the metrics")
                    snapshot, has_failed = None, True
                if snapshot is not None and not _send(helper, snapshot):
                    log.warning("the helper of the metrics has ended (%s): it is started again", _end(helper))
                    with contextlib.suppress(OSError):
                        helper = self._start()
                if self._closed.wait(max(0.0, began + self._seconds - time.monotonic())):
                    return
        finally:
            self._server.close()
            _end(helper)
            self._done.set()

    def _start(self) -> subprocess.Popen[bytes]:
        number = self._server.fileno()
        return subprocess.Popen(
            [sys.executable, "-P", "-m", HELPER, str(number)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[number],
            start_new_session=True,
        )


def _send(helper: subprocess.Popen[bytes], snapshot: Snapshot) -> bool:
    """Sends a snapshot to the helper; returns whether it reads, and has not ended."""
    assert helper.stdin is not None
    pipe, rest = helper.stdin.fileno(), memoryview(msgspec.json.encode(snapshot) + b"\n")
    os.set_blocking(pipe, False)
    ready = select.poll()
    ready.register(pipe, select.POLLOUT)
    deadline = time.monotonic() + _PATIENCE
    try:
        while rest:
            # A helper that is stopped must not stop the service, too.
            if not ready.poll(max(0.0, deadline - time.monotonic()) * 1e3):
                return False
            with contextlib.suppress(BlockingIOError):
                rest = rest[os.write(pipe, rest) :]
    except OSError:
        return False
    return helper.poll() is None


def _end(helper: subprocess.Popen[bytes]) -> str:
    """Ends the helper; returns how it has ended."""
    assert helper.stdin is not None
    # It exits at the end of its standard input.
    with contextlib.suppress(OSError):
        helper.stdin.close()
    try:
        code = helper.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        helper.kill()
        code = helper.wait()
    return f"exit code {code}"

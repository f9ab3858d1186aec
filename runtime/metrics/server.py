"""HTTP server of the metrics and the page: `/`, `/metrics` and `/status.json`; any other path is 404."""

from __future__ import annotations

import dataclasses
import http.server
import json
import socket
import sys
import threading
import time
import traceback
from typing import Any, override
from urllib.parse import urlsplit

from pathways.runtime.metrics.exposition import expose
from pathways.runtime.metrics.page import POLICY, page_of
from pathways.runtime.metrics.snapshots import History, Snapshot

_MAX_REQUESTS = 32
"""Limit on the connections at a time; further ones are closed."""

_TIMEOUT = 10.0
"""Seconds after which a connection without a request is closed."""


_TEXT = "text/plain; charset=utf-8"


class Board:
    """Last snapshots, which the threads of a server read."""

    def __init__(self) -> None:
        self._history = History()
        self._lock = threading.Lock()
        self._received = 0.0

    def add(self, snapshot: Snapshot) -> None:
        """Adds a snapshot."""
        with self._lock:
            self._history.add(snapshot)
            self._received = time.monotonic()

    def answer(self, path: str, accept: str) -> tuple[int, str, bytes]:
        """Returns the status, the content type and the body of the reply to a request.

        Args:
          accept: the formats that the reader accepts.
        """
        if path not in ("/", "/metrics", "/status.json"):
            return 404, _TEXT, b"not found: there are /, /metrics and /status.json\n"
        with self._lock:
            latest, age = self._history.latest, time.monotonic() - self._received
            if latest is None:
                return 503, _TEXT, b"the service has sent no snapshot yet\n"
            if path == "/":
                return 200, "text/html; charset=utf-8", page_of(self._history, age).encode()
        if path == "/metrics":
            body, content_type = expose(latest, age, accept)
            return 200, content_type, body
        return 200, "application/json", json.dumps(dataclasses.asdict(latest.status)).encode()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "pathways"
    sys_version = ""
    timeout = _TIMEOUT
    server: MetricsServer

    def do_GET(self) -> None:
        """Replies to a request."""
        self._reply(has_body=True)

    def do_HEAD(self) -> None:
        """Replies without the body."""
        self._reply(has_body=False)

    def _reply(self, *, has_body: bool) -> None:
        path = urlsplit(self.path).path
        try:
            status, content_type, body = self.server.board.answer(path, self.headers.get("Accept", ""))
        except Exception:
            # To the log of the service.
            traceback.print_exc()
            status, content_type, body = 500, _TEXT, b"this is a bug in pathways\n"
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if has_body:
            self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        pass


class MetricsServer(http.server.ThreadingHTTPServer):
    """Server of a board on a listening socket."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, board: Board) -> None:
        super().__init__(listening.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.board = board
        self._places = threading.BoundedSemaphore(_MAX_REQUESTS)

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    @override
    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores connections that end in the middle."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

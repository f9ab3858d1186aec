"""Client of gRPC for tests of the proxy server: plain calls over HTTP/2, in this process."""

from __future__ import annotations

import base64
import socket
from collections.abc import Mapping
from pathlib import Path

import h2.config
import h2.connection
import h2.events


class HttpClient:
    """Client's end of a connection of HTTP/2, without a socket."""

    def __init__(self) -> None:
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self.h2 = h2.connection.H2Connection(config)
        self.h2.initiate_connection()
        self.messages: dict[int, list[bytes]] = {}
        self.statuses: dict[int, tuple[int, str]] = {}
        self._received: dict[int, bytearray] = {}

    def call(self, method: str, metadata: Mapping[str, bytes] | None = None, **headers: str) -> int:
        """Starts a call; returns its stream."""
        stream = self.h2.get_next_available_stream_id()
        binary = {
            name: base64.b64encode(value).decode().rstrip("=") for name, value in (metadata or {}).items()
        }
        plain = {
            ":method": "POST",
            ":scheme": "http",
            ":path": method,
            ":authority": "test",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        self.h2.send_headers(stream, list((plain | headers | binary).items()))
        self.messages[stream] = []
        self._received[stream] = bytearray()
        return stream

    def send(self, stream: int, message: bytes, *, end: bool = False) -> None:
        """Sends a message, in as many frames as it needs."""
        data = b"\0" + len(message).to_bytes(4, "big") + message
        size = self.h2.max_outbound_frame_size
        for start in range(0, len(data), size):
            self.h2.send_data(
                stream, data[start : start + size], end_stream=end and start + size >= len(data)
            )

    def receive(self, data: bytes) -> None:
        """Reads data that the server has sent."""
        for event in self.h2.receive_data(data):
            match event:
                case h2.events.DataReceived(stream_id=stream, data=piece, flow_controlled_length=size):
                    self.h2.acknowledge_received_data(size or 0, stream)
                    received = self._received[stream]
                    received += piece or b""
                    while len(received) >= 5 and len(received) >= 5 + int.from_bytes(received[1:5], "big"):
                        end = 5 + int.from_bytes(received[1:5], "big")
                        self.messages[stream].append(bytes(received[5:end]))
                        del received[:end]
                case h2.events.TrailersReceived(stream_id=stream, headers=headers):
                    trailers = dict(headers or ())
                    self.statuses[stream] = int(trailers["grpc-status"]), trailers.get("grpc-message", "")


class SocketClient(HttpClient):
    """Client at a UNIX socket."""

    def __init__(self, path: Path, timeout: float = 60.0) -> None:
        super().__init__()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout)
        self._socket.connect(str(path))
        self.flush()

    def flush(self) -> None:
        """Writes the pending data."""
        self._socket.sendall(self.h2.data_to_send())

    def wait_for_message(self, stream: int) -> bytes:
        """Returns the next message of a call."""
        while not self.messages[stream]:
            self._read()
        return self.messages[stream].pop(0)

    def wait_for_status(self, stream: int) -> tuple[int, str]:
        """Returns the status that a call ended with."""
        while stream not in self.statuses:
            self._read()
        return self.statuses[stream]

    def close(self) -> None:
        """Closes the connection, even in the middle of a call."""
        self._socket.close()

    def _read(self) -> None:
        self.flush()
        data = self._socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the server closed the connection")
        self.receive(data)
        self.flush()

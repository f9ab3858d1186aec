"""Server side of gRPC over one HTTP/2 connection: a state machine without socket, thread and clock.

Bytes in, events out; messages in, bytes out. A call is a stream of HTTP/2: a header names the method, each
message has a prefix of five bytes (compressed or not, length), and a trailer holds the status. Flow control
bounds memory in both directions: credit for what arrives is returned when it was handled, and
`pending_bytes` says how much a client has not read yet.
"""

from __future__ import annotations

import base64
import binascii
import collections
import dataclasses
import urllib.parse
from collections.abc import Iterator, Mapping

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import hyperframe.frame

from pathways.runtime.proxy.statuses import StatusCode, StatusError

MAX_MESSAGE_BYTES = 1 << 31
"""Largest message: a computation with its constants. Its bytes are only allocated as they arrive."""

MAX_STREAMS = 256
MAX_HEADER_BYTES = 64 << 10
MAX_UNHANDLED_BYTES = 8 << 20
"""How many bytes of whole messages may wait to be handled before a client gets no further credit."""

STREAM_WINDOW = 8 << 20
CONNECTION_WINDOW = 64 << 20
MAX_FRAME_BYTES = 1 << 20
_PREFIX_BYTES = 5

# h2 makes a text of every frame for its log, also where it keeps none: of a large frame, all of its bytes in
# hexadecimal, which takes longer than all else together.
hyperframe.frame.DataFrame.__repr__ = object.__repr__  # type: ignore[method-assign]

StreamId = int


@dataclasses.dataclass(frozen=True)
class CallStarted:
    """A client called a method.

    Attributes:
      stream: the call.
      method: the path, `/package.Service/Method`.
      metadata: the headers that end in `-bin`, decoded.
    """

    stream: StreamId
    method: str
    metadata: Mapping[str, bytes]


@dataclasses.dataclass(frozen=True)
class MessageReceived:
    """A whole message of a call; `GrpcConnection.handled` has to be called for its bytes."""

    stream: StreamId
    data: bytes


@dataclasses.dataclass(frozen=True)
class RequestsEnded:
    """The client sends no further messages in a call, and expects the rest of the replies."""

    stream: StreamId


@dataclasses.dataclass(frozen=True)
class CallCancelled:
    """A call ended without a status: the client cancelled it, or broke the protocol."""

    stream: StreamId


@dataclasses.dataclass(frozen=True)
class ConnectionLost:
    """The connection ended; so did all of its calls."""

    reason: str


Event = CallStarted | MessageReceived | RequestsEnded | CallCancelled | ConnectionLost


class _Stream:
    """One call: what arrived of the next message, and what is still to be sent."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.unhandled_bytes = 0
        self.uncredited_bytes = 0
        self.outgoing: collections.deque[memoryview] = collections.deque()
        self.pending_bytes = 0
        self.has_headers_sent = False
        self.status: tuple[StatusCode, str] | None = None


class GrpcConnection:
    """Calls of one client; not safe for several threads at once."""

    def __init__(self, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._max_message_bytes = max_message_bytes
        config = h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        self._h2 = h2.connection.H2Connection(config)
        self._h2.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                h2.settings.SettingCodes.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
                h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
                h2.settings.SettingCodes.ENABLE_CONNECT_PROTOCOL: 0,
            },
        )
        self._h2.max_inbound_frame_size = MAX_FRAME_BYTES
        self._h2.decoder.max_header_list_size = MAX_HEADER_BYTES
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW)
        self._streams: dict[StreamId, _Stream] = {}
        self.is_lost = False

    @property
    def calls(self) -> tuple[StreamId, ...]:
        """The calls that have not ended."""
        return tuple(self._streams)

    def bytes_to_send(self) -> bytes:
        """Returns what is to be written to the socket, once."""
        return self._h2.data_to_send()

    def pending_bytes(self, stream: StreamId) -> int:
        """Returns how many bytes of replies wait until the client reads."""
        state = self._streams.get(stream)
        return 0 if state is None else state.pending_bytes

    def receive(self, data: bytes) -> list[Event]:
        """Reads what came from the socket; no bytes mean its end."""
        if self.is_lost:
            return []
        if not data:
            return self._lose("closed by the client")
        try:
            received = self._h2.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            return self._lose(
                f"invalid HTTP/2: {error}" if str(error) else f"invalid HTTP/2: {type(error).__name__}"
            )
        except UnicodeDecodeError:
            return self._lose("invalid HTTP/2: a header is not text")
        events: list[Event] = []
        for event in received:
            try:
                events.extend(self._interpret(event))
            except h2.exceptions.ProtocolError as error:
                return [*events, *self._lose(f"invalid HTTP/2: {error}")]
        return events

    def handled(self, stream: StreamId, size: int) -> None:
        """Returns the credit for a message that was handled, so that the client may send more."""
        state = self._streams.get(stream)
        if state is not None:
            state.unhandled_bytes -= size
            self._return_credit(stream, state)

    def send(self, stream: StreamId, *messages: bytes) -> None:
        """Sends messages, in as few frames as possible; no-op for a call that has ended."""
        state = self._streams.get(stream)
        if state is None or state.status is not None or not messages:
            return
        self._send_headers(stream, state)
        framed = b"".join(
            part for message in messages for part in (len(message).to_bytes(_PREFIX_BYTES, "big"), message)
        )
        state.outgoing.append(memoryview(framed))
        state.pending_bytes += len(framed)
        self._flush(stream, state)

    def finish(self, stream: StreamId, code: StatusCode = StatusCode.OK, message: str = "") -> None:
        """Ends a call with a status, after the messages before it; no-op for a call that has ended."""
        state = self._streams.get(stream)
        if state is None or state.status is not None:
            return
        self._send_headers(stream, state)
        state.status = code, message
        self._flush(stream, state)

    def _interpret(self, event: h2.events.Event) -> Iterator[Event]:
        match event:
            case h2.events.RequestReceived(stream_id=stream, headers=headers):
                yield from self._start(stream, {str(name): str(value) for name, value in headers or ()})
            case h2.events.DataReceived(stream_id=stream, data=data, flow_controlled_length=size):
                yield from self._read(stream, data or b"", size or 0)
            case h2.events.StreamEnded(stream_id=stream) if stream in self._streams:
                if self._streams[stream].received:
                    yield from self._refuse(
                        stream, StatusCode.INVALID_ARGUMENT, "the last message is incomplete"
                    )
                else:
                    yield RequestsEnded(stream)
            case h2.events.StreamReset(stream_id=stream) if stream in self._streams:
                del self._streams[stream]
                yield CallCancelled(stream)
            case h2.events.WindowUpdated(stream_id=0) | h2.events.RemoteSettingsChanged():
                for number, state in tuple(self._streams.items()):
                    self._flush(number, state)
            case h2.events.WindowUpdated(stream_id=stream) if stream in self._streams:
                self._flush(stream, self._streams[stream])
            case h2.events.ConnectionTerminated():
                yield from self._lose("closed by the client")

    def _start(self, stream: StreamId, headers: dict[str, str]) -> Iterator[Event]:
        self._streams[stream] = _Stream()
        if headers.get(":method") != "POST" or not headers.get("content-type", "").startswith(
            "application/grpc"
        ):
            yield from self._refuse(stream, StatusCode.INVALID_ARGUMENT, "the server expects calls of gRPC")
            return
        try:
            metadata = {name: _decode(value) for name, value in headers.items() if name.endswith("-bin")}
        except StatusError as error:
            yield from self._refuse(stream, error.code, error.message)
            return
        yield CallStarted(stream, headers.get(":path", ""), metadata)

    def _read(self, stream: StreamId, data: bytes, size: int) -> Iterator[Event]:
        state = self._streams.get(stream)
        if state is None:
            self._h2.acknowledge_received_data(size, stream)  # of a call that was refused
            return
        state.uncredited_bytes += size
        state.received += data
        position = 0
        received = state.received
        while len(received) - position >= _PREFIX_BYTES:
            if received[position] != 0:
                yield from self._refuse(stream, StatusCode.UNIMPLEMENTED, "messages may not be compressed")
                return
            length = int.from_bytes(received[position + 1 : position + _PREFIX_BYTES], "big")
            if length > self._max_message_bytes:
                yield from self._refuse(
                    stream,
                    StatusCode.RESOURCE_EXHAUSTED,
                    f"a message has {length} bytes; the server accepts {self._max_message_bytes}",
                )
                return
            end = position + _PREFIX_BYTES + length
            if end > len(received):
                break
            with memoryview(received) as view:
                message = bytes(view[position + _PREFIX_BYTES : end])
            position = end
            state.unhandled_bytes += length
            yield MessageReceived(stream, message)
        del received[:position]
        self._return_credit(stream, state)

    def _return_credit(self, stream: StreamId, state: _Stream) -> None:
        if state.uncredited_bytes and state.unhandled_bytes <= MAX_UNHANDLED_BYTES and not self.is_lost:
            size, state.uncredited_bytes = state.uncredited_bytes, 0
            self._h2.acknowledge_received_data(size, stream)

    def _refuse(self, stream: StreamId, code: StatusCode, message: str) -> Iterator[Event]:
        """Ends a call of a client that broke the protocol."""
        state = self._streams[stream]
        if state.uncredited_bytes:
            self._h2.acknowledge_received_data(state.uncredited_bytes, stream)
        state.outgoing.clear()
        self.finish(stream, code, message)
        yield CallCancelled(stream)

    def _send_headers(self, stream: StreamId, state: _Stream) -> None:
        if not state.has_headers_sent:
            state.has_headers_sent = True
            self._h2.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])

    def _flush(self, stream: StreamId, state: _Stream) -> None:
        """Sends what the windows of the client allow, and the status when nothing else is left."""
        while state.outgoing:
            window = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size)
            if window <= 0:
                return
            first = state.outgoing[0]
            self._h2.send_data(stream, bytes(first[:window]))
            state.pending_bytes -= min(window, len(first))
            if window >= len(first):
                state.outgoing.popleft()
            else:
                state.outgoing[0] = first[window:]
        if state.status is not None:
            code, message = state.status
            trailers = [("grpc-status", str(int(code)))]
            if message:
                trailers.append(
                    (
                        "grpc-message",
                        urllib.parse.quote(message[:4000], safe=" !#$&'()*+,-./:;<=>?@[]^_`{|}~"),
                    )
                )
            self._h2.send_headers(stream, trailers, end_stream=True)
            del self._streams[stream]

    def _lose(self, reason: str) -> list[Event]:
        """Ends the connection and all of its calls."""
        self.is_lost = True
        self._streams.clear()
        return [ConnectionLost(reason)]


def _decode(value: str) -> bytes:
    """Decodes a binary header, which gRPC may send without padding."""
    try:
        return base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
    except binascii.Error:
        raise StatusError(StatusCode.INVALID_ARGUMENT, "a binary header is not base64") from None

"""Server side of gRPC over one HTTP/2 connection: a state machine without socket, thread and clock.

Bytes in, events out; messages in, bytes out. A call is a stream of HTTP/2: a header names the method, each
message has a prefix of five bytes (compressed or not, length), and a trailer holds the status. Flow control
bounds memory in both directions: a message returns its credit when it was handled, and `pending_bytes` is the
number of bytes that a client has not read yet. Frames are created when they can be written, so that only the
messages themselves wait for a slow client, whose large buffers are not copied.

`frames` has the state of HTTP/2 and the windows of the client; this module has the windows of the server.
"""

from __future__ import annotations

import base64
import binascii
import collections
import urllib.parse
from collections.abc import Iterator

import h2.events
import h2.exceptions

from pathways.runtime.proxy.wire.events import (
    Buffer,
    CallCancelled,
    CallStarted,
    ConnectionLost,
    Event,
    Message,
    MessageReceived,
    RequestsEnded,
    StreamId,
)
from pathways.runtime.proxy.wire.frames import (
    CONNECTION_WINDOW,
    MAX_FRAME_BYTES,
    STREAM_WINDOW,
    FrameReader,
    HttpState,
    end_of_stream,
    window_update,
)
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError

MAX_MESSAGE_BYTES = 1 << 31
"""Size of the largest message: a computation with its constants. Memory is allocated only as bytes arrive."""

MAX_UNHANDLED_BYTES = 8 << 20
"""Bytes of complete messages that wait to be handled, beyond which a client gets no further credit."""

MAX_CONTROL_BYTES = 1 << 20
"""Maximum of bytes of frames without data that wait for a client that does not read."""

MESSAGE_OVERHEAD = 128
"""Memory of a message in addition to its bytes, so that empty messages count, too."""

_PREFIX_BYTES = 5
_MIN_UNCOPIED_BYTES = 4 << 10
"""Smaller buffers of messages are copied to one, since each buffer costs time when it is written."""


class _Stream:
    """State of a call: the bytes of the next message so far, and the bytes to send."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.window = STREAM_WINDOW
        self.unhandled_bytes = 0
        self.uncredited_bytes = 0
        self.is_half_closed = False
        self.outgoing: collections.deque[memoryview] = collections.deque()
        self.pending_bytes = 0
        self.has_headers_sent = False
        self.status: tuple[StatusCode, str] | None = None


class GrpcConnection:
    """Connection of one client with its calls. Not safe for use by several threads at once."""

    def __init__(self, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._max_message_bytes = max_message_bytes
        self._h2 = HttpState()
        self._frames = FrameReader(self._starts_data)
        self._streams: dict[StreamId, _Stream] = {}
        self._window = CONNECTION_WINDOW
        self._uncredited_bytes = 0
        # Frames without data to send, and the streams whose windows may allow them to send data.
        self._control: list[bytes] = []
        self._control_bytes = 0
        self._sending: dict[StreamId, None] = {}
        self.is_lost = False

    @property
    def calls(self) -> tuple[StreamId, ...]:
        """The active calls."""
        return tuple(self._streams)

    @property
    def is_congested(self) -> bool:
        """Whether so many frames without data wait that no more should be read from the client."""
        return self._control_bytes > MAX_CONTROL_BYTES

    def pending_bytes(self, stream: StreamId) -> int:
        """Returns the number of bytes of replies that wait until the client reads."""
        state = self._streams.get(stream)
        return 0 if state is None else state.pending_bytes

    def bytes_to_send(self) -> bytes:
        """Returns all bytes to write to the socket, once."""
        return b"".join(iter(lambda: b"".join(self.buffers_to_send()), b""))

    def buffers_to_send(self, max_bytes: int = MAX_FRAME_BYTES) -> list[Buffer]:
        """Returns about `max_bytes` bytes to write to the socket next; none if nothing is left."""
        self._take_control()
        buffers: list[Buffer] = [*self._control]
        size = self._control_bytes
        self._control.clear()
        self._control_bytes = 0
        while self._sending and size < max_bytes:
            stream = next(iter(self._sending))
            del self._sending[stream]
            size += self._send_frame(stream, buffers)
        return buffers

    def receive(self, data: Buffer) -> list[Event]:
        """Returns the events in bytes from the socket, which are copied if needed; no bytes mean its end."""
        if self.is_lost:
            return []
        if not data:
            return self._lose("closed by the client")
        events: list[Event] = []
        try:
            for event in self._read_frames(memoryview(data)):
                events.append(event)
        except h2.exceptions.ProtocolError as error:
            reason = str(error) or type(error).__name__
            return [*events, *self._lose(f"invalid HTTP/2: {reason}")]
        except UnicodeDecodeError:
            return [*events, *self._lose("invalid HTTP/2: a header is not text")]
        self._take_control()
        return events

    def handled(self, stream: StreamId, size: int, messages: int = 1) -> None:
        """Returns the credit for messages that were handled, so that the client may send more."""
        state = self._streams.get(stream)
        if state is not None:
            state.unhandled_bytes -= size + messages * MESSAGE_OVERHEAD
            self._return_credit(stream, state)

    def send(self, stream: StreamId, *messages: Message) -> None:
        """Sends messages, in as few frames as possible; no-op for a call that has ended."""
        state = self._streams.get(stream)
        if state is None or state.status is not None or not messages:
            return
        self._send_headers(stream, state)
        joined: list[Buffer] = []
        for message in messages:
            buffers = [message] if isinstance(message, Buffer) else message
            size = sum(map(len, buffers))
            joined.append(b"\0" + size.to_bytes(_PREFIX_BYTES - 1, "big"))
            for buffer in buffers:
                if len(buffer) < _MIN_UNCOPIED_BYTES:
                    joined.append(buffer)
                    continue
                state.outgoing += memoryview(b"".join(joined)), memoryview(buffer)
                joined = []
            state.pending_bytes += _PREFIX_BYTES + size
        if joined:
            state.outgoing.append(memoryview(b"".join(joined)))
        self._sending[stream] = None

    def finish(self, stream: StreamId, code: StatusCode = StatusCode.OK, message: str = "") -> None:
        """Ends a call with a status, after the messages before it; no-op for a call that has ended."""
        state = self._streams.get(stream)
        if state is None or state.status is not None:
            return
        self._send_headers(stream, state)
        state.status = code, message
        self._sending[stream] = None

    def _read_frames(self, data: memoryview) -> Iterator[Event]:
        for frame in self._frames.read(data):
            if isinstance(frame, tuple):
                yield from self._read_data(*frame)
                continue
            widened = self._h2.widen(frame, self._streams.__contains__)
            if widened is None:
                yield from self._interpret(frame)
            else:
                self._sending.update(dict.fromkeys([widened] if widened else self._streams))
            if self.is_lost:
                return

    def _starts_data(self, stream: StreamId, length: int) -> bool:
        """Subtracts a frame of data from the windows of the server; returns False if h2 has to read it."""
        state = self._streams.get(stream)
        if state is None or state.is_half_closed:
            return False
        self._window -= length
        state.window -= length
        if min(self._window, state.window) < 0:
            raise h2.exceptions.FlowControlError("more data than the window allows")
        return True

    def _read_data(self, stream: StreamId, data: memoryview, is_end: bool) -> Iterator[Event]:
        """Reads the next bytes of a frame of data, which may be the last of the stream."""
        self._uncredited_bytes += len(data)
        if self._uncredited_bytes >= CONNECTION_WINDOW // 4:
            # The connection's window is always opened: only the windows of streams hold a client back, since
            # one session must not stop the others.
            self._window += self._uncredited_bytes
            self._open_window(0, self._uncredited_bytes)
            self._uncredited_bytes = 0
        state = self._streams.get(stream)
        if state is not None and state.status is None:
            state.uncredited_bytes += len(data)
            yield from self._read_messages(stream, state, data)
        if is_end:
            if state is not None:
                state.is_half_closed = True
            # h2 has not seen the frame: an empty one tells it that the stream ends.
            yield from self._interpret(end_of_stream(stream))

    def _interpret(self, data: Buffer) -> Iterator[Event]:
        """Passes frames without data of calls to h2."""
        for event in self._h2.receive_data(bytes(data)):
            match event:
                case h2.events.RequestReceived(stream_id=stream, headers=headers):
                    yield from self._start(stream, {str(name): str(value) for name, value in headers or ()})
                case h2.events.DataReceived(stream_id=stream, flow_controlled_length=size):
                    # The call has ended on this side.
                    self._h2.acknowledge_received_data(size or 0, stream)
                case h2.events.StreamEnded(stream_id=stream) if stream in self._streams:
                    state = self._streams[stream]
                    state.is_half_closed = True
                    if state.status is not None:
                        continue
                    if state.received:
                        yield from self._refuse(
                            stream, StatusCode.INVALID_ARGUMENT, "the last message is incomplete"
                        )
                    else:
                        yield RequestsEnded(stream)
                case h2.events.StreamReset(stream_id=stream) if stream in self._streams:
                    self._remove(stream)
                    yield CallCancelled(stream)
                case h2.events.RemoteSettingsChanged():
                    self._sending.update(dict.fromkeys(self._streams))
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

    def _read_messages(self, stream: StreamId, state: _Stream, data: memoryview) -> Iterator[Event]:
        """Reads the messages that end in the next bytes of a call."""
        received = state.received
        while len(received) + len(data) >= _PREFIX_BYTES:
            missing = max(_PREFIX_BYTES - len(received), 0)
            prefix = bytes(received[:_PREFIX_BYTES]) + bytes(data[:missing])
            if prefix[0] != 0:
                yield from self._refuse(stream, StatusCode.UNIMPLEMENTED, "messages may not be compressed")
                return
            length = int.from_bytes(prefix[1:], "big")
            if length > self._max_message_bytes:
                yield from self._refuse(
                    stream,
                    StatusCode.RESOURCE_EXHAUSTED,
                    f"a message has {length} bytes; the server accepts {self._max_message_bytes}",
                )
                return
            missing = _PREFIX_BYTES + length - len(received)
            if missing > len(data):
                break
            if received:
                # The buffer becomes the message, without another copy.
                received += data[:missing]
                message: Buffer = memoryview(received)[_PREFIX_BYTES:]
                received = state.received = bytearray()
            else:
                message = bytes(data[_PREFIX_BYTES:missing])
            data = data[missing:]
            state.unhandled_bytes += length + MESSAGE_OVERHEAD
            yield MessageReceived(stream, message)
        received += data
        self._return_credit(stream, state)

    def _return_credit(self, stream: StreamId, state: _Stream) -> None:
        if state.unhandled_bytes > MAX_UNHANDLED_BYTES or state.is_half_closed:
            return
        if state.uncredited_bytes >= STREAM_WINDOW // 4:
            state.window += state.uncredited_bytes
            self._open_window(stream, state.uncredited_bytes)
            state.uncredited_bytes = 0

    def _open_window(self, stream: StreamId, size: int) -> None:
        """Opens the window of a stream, or of the connection for number 0."""
        self._take_control()
        frame = window_update(stream, size)
        self._control.append(frame)
        self._control_bytes += len(frame)

    def _take_control(self) -> None:
        """Moves bytes that h2 has to send to the buffers to write."""
        data = self._h2.data_to_send()
        if data:
            self._control.append(data)
            self._control_bytes += len(data)

    def _refuse(self, stream: StreamId, code: StatusCode, message: str) -> Iterator[Event]:
        """Ends a call of a client that broke the protocol."""
        state = self._streams[stream]
        state.outgoing.clear()
        state.pending_bytes = 0
        self.finish(stream, code, message)
        yield CallCancelled(stream)

    def _send_headers(self, stream: StreamId, state: _Stream) -> None:
        if not state.has_headers_sent:
            state.has_headers_sent = True
            self._h2.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])

    def _send_frame(self, stream: StreamId, buffers: list[Buffer]) -> int:
        """Adds the next frames of a stream to the buffers to write; returns the number of bytes."""
        state = self._streams[stream]
        size = 0
        if state.outgoing:
            size = min(
                self._h2.local_flow_control_window(stream),
                self._h2.max_outbound_frame_size,
                state.pending_bytes,
            )
            if size <= 0:
                return 0  # until the client opens a window
            buffers.append(self._h2.start_data(stream, size))
            self._take_outgoing(state, size, buffers)
        if state.outgoing:
            self._sending[stream] = None  # after the other streams
        elif state.status is not None:
            self._send_status(stream, *state.status)
            buffers.append(self._h2.data_to_send())
        return size

    def _take_outgoing(self, state: _Stream, size: int, buffers: list[Buffer]) -> None:
        state.pending_bytes -= size
        while size:
            buffer = state.outgoing.popleft()
            if len(buffer) > size:
                state.outgoing.appendleft(buffer[size:])
                buffer = buffer[:size]
            buffers.append(buffer)
            size -= len(buffer)

    def _send_status(self, stream: StreamId, code: StatusCode, message: str) -> None:
        trailers = [("grpc-status", str(int(code)))]
        if message:
            text = urllib.parse.quote(message[:4000], safe=" !#$&'()*+,-./:;<=>?@[]^_`{|}~")
            trailers.append(("grpc-message", text))
        self._h2.send_headers(stream, trailers, end_stream=True)
        self._remove(stream)

    def _remove(self, stream: StreamId) -> None:
        del self._streams[stream]
        self._sending.pop(stream, None)

    def _lose(self, reason: str) -> list[Event]:
        """Ends the connection and all of its calls."""
        self.is_lost = True
        self._streams.clear()
        self._sending.clear()
        return [ConnectionLost(reason)]


def _decode(value: str) -> bytes:
    """Decodes a binary header, which gRPC may send without padding."""
    try:
        return base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
    except binascii.Error:
        raise StatusError(StatusCode.INVALID_ARGUMENT, "a binary header is not base64") from None

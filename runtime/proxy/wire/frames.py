"""Frames of HTTP/2, and the windows of the client.

h2 keeps the state of the connection and of its streams, headers, settings and the windows of the client. It
copies each frame of data five times, so that these frames bypass it, and are read and written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import h2.config
import h2.connection
import h2.exceptions
import h2.settings

from pathways.runtime.proxy.wire.events import StreamId

MAX_STREAMS = 256
MAX_HEADER_BYTES = 64 << 10
STREAM_WINDOW = 8 << 20
CONNECTION_WINDOW = 64 << 20
MAX_FRAME_BYTES = 1 << 20

_PREFACE_BYTES = 24
_HEADER_BYTES = 9
_DATA = 0
_WINDOW_UPDATE = 8
_END_STREAM = 0x1
_PADDED = 0x8
_MAX_WINDOW = (1 << 31) - 1


class HttpState(h2.connection.H2Connection):
    """State of the server side in h2, without the data of streams."""

    # By default, h2 remembers 65,536 closed streams.
    MAX_CLOSED_STREAMS = 4 * MAX_STREAMS

    def __init__(self) -> None:
        config = h2.config.H2Configuration(
            client_side=False,
            header_encoding="utf-8",
            # The headers of the server are valid; the checks cost time.
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        super().__init__(config)
        self.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                h2.settings.SettingCodes.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
                h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
                h2.settings.SettingCodes.ENABLE_CONNECT_PROTOCOL: 0,
            },
        )
        self.max_inbound_frame_size = MAX_FRAME_BYTES
        self.decoder.max_header_list_size = MAX_HEADER_BYTES
        self.initiate_connection()
        self.increment_flow_control_window(CONNECTION_WINDOW)

    def widen(self, frame: bytes, is_open: Callable[[StreamId], bool]) -> StreamId | None:
        """Handles a frame that opens a window of the client. Each call has two such frames.

        Args:
          is_open: returns whether a stream has not ended.

        Returns:
          The stream of the window, 0 for the connection; None if h2 has to read the frame.
        """
        if frame[3] != _WINDOW_UPDATE or len(frame) != _HEADER_BYTES + 4:
            return None
        size = int.from_bytes(frame[_HEADER_BYTES:], "big")
        stream = int.from_bytes(frame[5:_HEADER_BYTES], "big")
        window = self if stream == 0 else self.streams[stream] if is_open(stream) else None
        # h2 raises the error for an invalid size.
        if window is None or not 0 < size <= _MAX_WINDOW - window.outbound_flow_control_window:
            return None
        window.outbound_flow_control_window += size
        return stream

    def start_data(self, stream: StreamId, size: int) -> bytes:
        """Returns the header of a frame of data, and subtracts it from the windows of the client."""
        self.outbound_flow_control_window -= size
        self.streams[stream].outbound_flow_control_window -= size
        return _header(_DATA, 0, stream, size)


class FrameReader:
    """Reader that divides arriving bytes into frames.

    Args:
      starts_data: called at the start of a frame of data with its stream and size; returns whether the frame
        bypasses h2.
    """

    def __init__(self, starts_data: Callable[[StreamId, int], bool]) -> None:
        self._starts_data = starts_data
        # The bytes of the current frame so far, or the header alone of a frame of data; the number of bytes
        # that are missing; and the stream of a frame of data. The preface of a connection is read as a frame.
        self._frame = bytearray()
        self._left = _PREFACE_BYTES
        self._stream: StreamId | None = None
        self._ends_stream = False

    def read(self, data: memoryview) -> Iterator[bytes | tuple[StreamId, memoryview, bool]]:
        """Yields frames for h2 as bytes, and pieces of frames of data.

        The latter are tuples: the stream, bytes of the frame, and whether they are the last of the stream.
        """
        position = 0
        while position < len(data):
            size = self._left or _HEADER_BYTES - len(self._frame)
            piece = data[position : position + size]
            position += len(piece)
            if self._stream is not None:
                self._left -= len(piece)
                yield self._piece(self._stream, piece)
                continue
            self._frame += piece
            if self._left:
                self._left -= len(piece)
                if not self._left:
                    yield self._take_frame()
            elif len(piece) == size:
                yield from self._start_frame(bytes(self._frame))

    def _start_frame(self, header: bytes) -> Iterator[bytes | tuple[StreamId, memoryview, bool]]:
        length, kind, flags = int.from_bytes(header[:3], "big"), header[3], header[4]
        stream = int.from_bytes(header[5:], "big") & 0x7FFFFFFF
        if length > MAX_FRAME_BYTES:
            raise h2.exceptions.FrameTooLargeError(f"a frame of {length} bytes")
        self._left = length
        if kind != _DATA or not self._starts_data(stream, length):
            if not length:
                yield self._take_frame()
            return
        self._frame.clear()
        if flags & _PADDED:
            raise h2.exceptions.ProtocolError("a frame of data is padded")
        self._stream = stream
        self._ends_stream = bool(flags & _END_STREAM)
        if not length:
            yield self._piece(stream, memoryview(b""))

    def _piece(self, stream: StreamId, data: memoryview) -> tuple[StreamId, memoryview, bool]:
        if self._left:
            return stream, data, False
        self._stream = None
        return stream, data, self._ends_stream

    def _take_frame(self) -> bytes:
        frame = bytes(self._frame)
        self._frame.clear()
        return frame


def end_of_stream(stream: StreamId) -> bytes:
    """Returns an empty frame of data that ends a stream."""
    return _header(_DATA, _END_STREAM, stream, 0)


def window_update(stream: StreamId, size: int) -> bytes:
    """Returns a frame that opens the window of a stream, or of the connection for number 0."""
    return _header(_WINDOW_UPDATE, 0, stream, 4) + size.to_bytes(4, "big")


def _header(kind: int, flags: int, stream: StreamId, size: int) -> bytes:
    return size.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")

"""Methods of the service: the call of each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from pathways.runtime.proxy.host_buffers import data_header
from pathways.runtime.proxy.serving.call_writer import CallWriter
from pathways.runtime.proxy.serving.calls import ServiceCall, SessionCall, StoreCall, UnaryCall
from pathways.runtime.proxy.serving.registry import SessionRegistry
from pathways.runtime.proxy.wire.descriptors import PROTOCOL, SERIALIZATION
from pathways.runtime.proxy.wire.events import Buffer, CallStarted, Message
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError

_PACKAGE = "xla.ifrt.proxy."
_SERVICE = f"/{_PACKAGE}GrpcIfrtService/"
_SESSION_METADATA = "ifrt-proxy-grpc-ifrt-session-metadata-bin"
_STORE_METADATA = "ifrt-proxy-grpc-host-buffer-store-metadata-bin"

_CHUNK_BYTES = 1 << 20
"""Bytes of a host buffer in one message; the client allocates memory for each message."""


def start_call(registry: SessionRegistry, writer: CallWriter, event: CallStarted) -> ServiceCall:
    """Starts a call of the method that a client names.

    Raises:
      StatusError: the service has no such method, or the headers are invalid.
    """
    method = event.method.removeprefix(_SERVICE)
    if method == "IfrtSession":
        return _start_session(registry, writer, event)
    if method == "HostBufferStore":
        return _start_store(registry, writer, event)
    if method == "HostBufferLookup":
        return UnaryCall(writer, event.stream, functools.partial(_read_host_buffer, registry))
    if method in _UNARY:
        return UnaryCall(writer, event.stream, functools.partial(_reply, registry, method))
    raise StatusError(
        StatusCode.UNIMPLEMENTED, f"calls of {event.method[:100]!r} are not supported by the server"
    )


def _start_session(registry: SessionRegistry, writer: CallWriter, event: CallStarted) -> SessionCall:
    metadata = registry.served.messages.parse(
        f"{_PACKAGE}GrpcIfrtSessionMetadata", _header(event, _SESSION_METADATA)
    )
    version = metadata.version
    PROTOCOL.choose(version.protocol_version, version.protocol_version)
    serialization = version.ifrt_serdes_version_number
    SERIALIZATION.choose(serialization, serialization)
    unknown = sorted(metadata.initialization_data.attributes)
    if unknown:
        raise StatusError(
            StatusCode.UNIMPLEMENTED, f"initialization data that the server does not know: {unknown}"[:1000]
        )
    return SessionCall(writer, event.stream, registry)


def _start_store(registry: SessionRegistry, writer: CallWriter, event: CallStarted) -> StoreCall:
    messages = registry.served.messages
    metadata = messages.parse(f"{_PACKAGE}GrpcHostBufferStoreMetadata", _header(event, _STORE_METADATA))
    session = registry.session(metadata.session_id)
    return StoreCall(writer, event.stream, session, metadata.handle, metadata.buffer_size, messages)


def _header(event: CallStarted, name: str) -> bytes:
    if name not in event.metadata:
        raise StatusError(StatusCode.INVALID_ARGUMENT, f"the call has no header {name}")
    return event.metadata[name]


def _read_host_buffer(registry: SessionRegistry, data: Buffer) -> list[Message]:
    request = registry.served.messages.parse(f"{_PACKAGE}GrpcHostBufferLookupRequest", data)
    buffer = registry.session(request.session_id).host_buffers.find(request.handle)
    # All chunks are queued at once: they are views of the buffer, which stays in memory anyway.
    view = memoryview(buffer)
    starts = range(0, len(view) or 1, _CHUNK_BYTES)
    chunks = [view[start : start + _CHUNK_BYTES] for start in starts]
    return [(data_header(len(chunk)), chunk) for chunk in chunks]


def _reply(registry: SessionRegistry, method: str, data: Buffer) -> list[Message]:
    messages = registry.served.messages
    reply = messages[f"{_PACKAGE}Grpc{method}Response"]()
    _UNARY[method](registry, messages.parse(f"{_PACKAGE}Grpc{method}Request", data), reply)
    return [reply.SerializeToString()]


def _get_version(registry: SessionRegistry, request: Any, reply: Any) -> None:
    first, last = request.min_version, request.max_version
    reply.version.protocol_version = PROTOCOL.choose(first.protocol_version, last.protocol_version)
    reply.version.ifrt_serdes_version_number = SERIALIZATION.choose(
        first.ifrt_serdes_version_number, last.ifrt_serdes_version_number
    )


def _delete_host_buffer(registry: SessionRegistry, request: Any, reply: Any) -> None:
    registry.session(request.session_id).host_buffers.delete(request.handle)


def _read_host_buffer_from_disk(registry: SessionRegistry, request: Any, reply: Any) -> None:
    metadata = request.metadata
    session = registry.session(metadata.session_id)
    registry.transfer_folder.read(session, metadata.handle, metadata.buffer_size)


_UNARY: Mapping[str, Callable[[SessionRegistry, Any, Any], None]] = {
    "GetVersion": _get_version,
    "HostBufferDelete": _delete_host_buffer,
    "HostBufferReadFromDisk": _read_host_buffer_from_disk,
}
"""Methods with one request and one reply, which they fill."""

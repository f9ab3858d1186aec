"""Connections and sessions at a socket, with a client in this process that may break the protocol."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from proxy_client import SocketClient

from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.loading.local_backend import LocalBackend
from pathways.runtime.proxy.serving import call_writer
from pathways.runtime.proxy.serving.server import ProxyServer
from pathways.runtime.proxy.serving.transfer_folder import TRANSFER_FOLDER_VARIABLE
from pathways.runtime.proxy.sessions import state
from pathways.runtime.proxy.wire import descriptors, grpc_connection
from pathways.runtime.proxy.wire.statuses import StatusError
from pathways.runtime.resources.folders import PermittedFolders

MESSAGES = descriptors.messages()
SERVICE = "/xla.ifrt.proxy.GrpcIfrtService/"
VERSION = {"protocol_version": 25, "ifrt_serdes_version_number": 6}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ProxyServer]:
    server = ProxyServer(tmp_path / "socket", ServedDevices(LocalBackend(jax.devices("cpu")), MESSAGES))
    yield server
    server.close()


@pytest.fixture
def client(server: ProxyServer) -> Iterator[SocketClient]:
    client = SocketClient(server.path)
    yield client
    client.close()


def encode(name: str, **fields: Any) -> bytes:
    return MESSAGES[f"xla.ifrt.proxy.{name}"](**fields).SerializeToString()


def start_session(client: SocketClient) -> tuple[int, int]:
    """Starts a session; returns its stream and its id."""
    metadata = encode("GrpcIfrtSessionMetadata", version=VERSION)
    stream = client.call(f"{SERVICE}IfrtSession", {"ifrt-proxy-grpc-ifrt-session-metadata-bin": metadata})
    client.send(stream, encode("IfrtRequest", init_request={}))
    reply = MESSAGES.parse("xla.ifrt.proxy.IfrtResponse", client.wait_for_message(stream))
    return stream, reply.init_response.session_id


def start_store(client: SocketClient, session: int, handle: int, size: int) -> int:
    """Starts to store a host buffer; returns the stream."""
    metadata = encode("GrpcHostBufferStoreMetadata", session_id=session, handle=handle, buffer_size=size)
    return client.call(
        f"{SERVICE}HostBufferStore", {"ifrt-proxy-grpc-host-buffer-store-metadata-bin": metadata}
    )


def make_array(handle: int, size: int, device: int = 0) -> bytes:
    """Returns a request that creates an array of bytes from a host buffer."""
    sharding = MESSAGES["xla.ifrt.SingleDeviceShardingProto"](device_id=device).SerializeToString()
    serialized = {"type_name": "xla::ifrt::SingleDeviceSharding", "data": sharding}
    return encode(
        "IfrtRequest",
        make_array_from_host_buffer_request={
            "dtype": {"kind": "KIND_U8"},
            "shape": {"dims": [size]},
            "sharding": {"serialized_sharding": serialized},
            "host_buffer_handle": handle,
            "array_handle": handle,
        },
    )


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_newest_version_is_chosen(client: SocketClient) -> None:
    stream = client.call(f"{SERVICE}GetVersion")
    newer = {"protocol_version": 99, "ifrt_serdes_version_number": 99}
    client.send(stream, encode("GrpcGetVersionRequest", min_version={}, max_version=newer), end=True)
    reply = MESSAGES.parse("xla.ifrt.proxy.GrpcGetVersionResponse", client.wait_for_message(stream))
    assert (reply.version.protocol_version, reply.version.ifrt_serdes_version_number) == (25, 6)
    assert client.wait_for_status(stream) == (0, "")


def test_a_client_that_is_too_old(client: SocketClient) -> None:
    stream = client.call(f"{SERVICE}GetVersion")
    old = {"protocol_version": 3}
    client.send(stream, encode("GrpcGetVersionRequest", min_version=old, max_version=old), end=True)
    code, message = client.wait_for_status(stream)
    assert code == 9
    assert "too old for the server: it speaks versions 3 to 3 of the IFRT proxy protocol" in message


def test_a_client_that_is_too_new(client: SocketClient) -> None:
    stream = client.call(f"{SERVICE}GetVersion")
    first, last = {"protocol_version": 26}, {"protocol_version": 30}
    client.send(stream, encode("GrpcGetVersionRequest", min_version=first, max_version=last), end=True)
    assert client.wait_for_status(stream) == (
        9,
        "the jaxlib of this client is too new for the server: it speaks versions 26 to 30 of the IFRT proxy "
        "protocol, the server 16 to 25; use a jaxlib of the server's release",
    )


@pytest.mark.parametrize(
    ("method", "code", "message"),
    [
        ("/some.Other/Call", 12, "calls of '/some.Other/Call' are not supported by the server"),
        (f"{SERVICE}IfrtSession", 3, "the call has no header ifrt-proxy-grpc-ifrt-session-metadata-bin"),
        (
            f"{SERVICE}HostBufferStore",
            3,
            "the call has no header ifrt-proxy-grpc-host-buffer-store-metadata-bin",
        ),
    ],
)
def test_calls_that_are_refused(client: SocketClient, method: str, code: int, message: str) -> None:
    assert client.wait_for_status(client.call(method)) == (code, message)


def test_a_session_with_unknown_features(client: SocketClient) -> None:
    for fields, code, message in (
        (
            {"initialization_data": {"attributes": {"who": {"bool_value": True}}}},
            12,
            "does not know: ['who']",
        ),
        ({"version": VERSION | {"ifrt_serdes_version_number": 99}}, 9, "IFRT serialization"),
    ):
        metadata = encode("GrpcIfrtSessionMetadata", **{"version": VERSION} | fields)
        stream = client.call(f"{SERVICE}IfrtSession", {"ifrt-proxy-grpc-ifrt-session-metadata-bin": metadata})
        status = client.wait_for_status(stream)
        assert status[0] == code
        assert message in status[1]


def test_a_host_buffer_may_come_after_the_request_that_needs_it(
    server: ProxyServer, client: SocketClient
) -> None:
    stream, session = start_session(client)
    client.send(stream, make_array(1, 5))
    other = SocketClient(server.path)
    store = start_store(other, session, 1, 5)
    other.send(store, encode("GrpcHostBufferStoreRequest", data=b"abc"))
    other.send(store, encode("GrpcHostBufferStoreRequest", data=b"de"), end=True)
    assert other.wait_for_status(store) == (0, "")
    reply = MESSAGES.parse("xla.ifrt.proxy.IfrtResponse", client.wait_for_message(stream))
    assert reply.make_array_from_host_buffer_response.array_handle == 1
    # The same in the other direction.
    client.send(
        stream,
        encode("IfrtRequest", copy_to_host_buffer_request={"array_handle": 1, "host_buffer_handle": 2}),
    )
    client.wait_for_message(stream)
    lookup = other.call(f"{SERVICE}HostBufferLookup")
    other.send(lookup, encode("GrpcHostBufferLookupRequest", session_id=session, handle=2), end=True)
    found = MESSAGES.parse("xla.ifrt.proxy.GrpcHostBufferLookupResponse", other.wait_for_message(lookup))
    assert found.data == b"abcde"
    delete = other.call(f"{SERVICE}HostBufferDelete")
    other.send(delete, encode("GrpcHostBufferDeleteRequest", session_id=session, handle=2), end=True)
    assert other.wait_for_status(delete) == (0, "")
    assert server.registry.session(session).counts == (1, 0, 0, 0)
    other.close()


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"abc", "a host buffer of 5 bytes ended after 3"), (b"abcdef", "a host buffer of 5 bytes has more")],
)
def test_a_host_buffer_of_another_size(client: SocketClient, data: bytes, message: str) -> None:
    _, session = start_session(client)
    store = start_store(client, session, 1, 5)
    client.send(store, encode("GrpcHostBufferStoreRequest", data=data), end=True)
    assert client.wait_for_status(store) == (3, message)


def test_a_session_that_does_not_exist(client: SocketClient) -> None:
    assert client.wait_for_status(start_store(client, 12345, 1, 5)) == (3, "no session has the id 12345")


def test_the_end_of_the_stream_ends_the_session(server: ProxyServer, client: SocketClient) -> None:
    stream, _ = start_session(client)
    client.h2.end_stream(stream)
    assert client.wait_for_status(stream) == (0, "")
    wait_until(lambda: server.sessions == ())


def test_a_lost_client_leaves_no_session(server: ProxyServer, client: SocketClient) -> None:
    stream, session = start_session(client)
    store = start_store(client, session, 7, 3)
    client.send(store, encode("GrpcHostBufferStoreRequest", data=b"abc"), end=True)
    client.wait_for_status(store)
    client.send(stream, make_array(7, 3))
    client.wait_for_message(stream)
    # The session then waits for a host buffer that never comes.
    client.send(stream, make_array(8, 3))
    client.flush()
    (running,) = server.sessions
    assert running.counts == (1, 0, 0, 0)
    client.close()
    wait_until(lambda: server.sessions == ())
    assert running.counts == (0, 0, 0, 0)


def test_an_invalid_request_ends_only_its_session(server: ProxyServer, client: SocketClient) -> None:
    stream, _ = start_session(client)
    other, _ = start_session(client)
    client.send(stream, b"\xff\xff")
    code, message = client.wait_for_status(stream)
    assert (code, message[:30]) == (3, "invalid message of 2 bytes; ex")
    client.send(other, encode("IfrtRequest", init_request={}))
    client.wait_for_message(other)
    assert len(server.sessions) == 1


def test_a_host_buffer_that_fails_is_an_error_of_the_array(server: ProxyServer, client: SocketClient) -> None:
    stream, session = start_session(client)
    client.send(stream, make_array(1, 5))
    client.flush()
    store = start_store(client, session, 1, 5)
    client.send(store, encode("GrpcHostBufferStoreRequest", data=b"abc"), end=True)
    assert client.wait_for_status(store)[0] == 3
    client.wait_for_message(stream)
    client.send(
        stream,
        encode("IfrtRequest", copy_to_host_buffer_request={"array_handle": 1, "host_buffer_handle": 2}),
    )
    reply = MESSAGES.parse("xla.ifrt.proxy.IfrtResponse", client.wait_for_message(stream))
    assert reply.response_metadata.status.message == "a host buffer of 5 bytes ended after 3"


def test_a_host_buffer_of_no_possible_size(client: SocketClient) -> None:
    stream, session = start_session(client)
    store = start_store(client, session, 1, -1)
    assert client.wait_for_status(store) == (3, "a host buffer of -1 bytes is not possible")
    client.send(stream, make_array(1, 5))
    client.wait_for_message(stream)


def test_a_host_buffer_that_is_too_large_is_an_error_of_its_array(client: SocketClient) -> None:
    """An error of the call would end the client."""
    stream, session = start_session(client)
    store = start_store(client, session, 1, 1 << 60)
    client.send(stream, make_array(1, 5))
    client.send(store, encode("GrpcHostBufferStoreRequest", data=b"abc"), end=True)
    assert client.wait_for_status(store) == (0, "")
    client.wait_for_message(stream)
    client.send(stream, encode("IfrtRequest", check_value_ready_request={"value_handles": [1]}))
    reply = MESSAGES.parse("xla.ifrt.proxy.IfrtResponse", client.wait_for_message(stream))
    assert reply.response_metadata.status.code == 8
    assert f"a host buffer of {1 << 60} bytes is too large" in reply.response_metadata.status.message


def test_host_buffers_wait_until_others_are_arrays(
    server: ProxyServer, client: SocketClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "max_bytes", lambda: 100)
    stream, session = start_session(client)
    stores = [start_store(client, session, handle, 60) for handle in (1, 2, 3)]
    for store in stores:
        client.send(store, encode("GrpcHostBufferStoreRequest", data=bytes(60)), end=True)
    assert client.wait_for_status(stores[0]) == (0, "")
    assert len(server.sessions[0].host_buffers) == 1
    for handle in (3, 1, 2):
        client.send(stream, make_array(handle, 60))
        client.wait_for_message(stream)
    client.send(stream, encode("IfrtRequest", check_value_ready_request={"value_handles": [1, 2, 3]}))
    reply = MESSAGES.parse("xla.ifrt.proxy.IfrtResponse", client.wait_for_message(stream))
    assert reply.response_metadata.status.code == 0
    assert [client.wait_for_status(store) for store in stores] == [(0, "")] * 3


def test_a_client_that_disconnects_while_host_buffers_wait(
    server: ProxyServer, client: SocketClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "max_bytes", lambda: 100)
    _, session = start_session(client)
    for handle in (1, 2, 3):
        store = start_store(client, session, handle, 60)
        client.send(
            store, encode("GrpcHostBufferStoreRequest", data=bytes(60 if handle < 3 else 5)), end=handle < 3
        )
    client.flush()
    buffers = server.sessions[0].host_buffers
    wait_until(lambda: len(buffers._arrivals) == 2)
    client.close()
    wait_until(lambda: not server.sessions)
    assert (len(buffers), len(buffers._arrivals)) == (0, 0)


def test_a_host_buffer_that_is_cancelled(server: ProxyServer, client: SocketClient) -> None:
    stream, session = start_session(client)
    client.send(stream, make_array(1, 5))
    store = start_store(client, session, 1, 5)
    client.flush()
    client.h2.reset_stream(store)
    client.wait_for_message(stream)


def test_large_host_buffers_are_put_and_fetched(server: ProxyServer, client: SocketClient) -> None:
    stream, session = start_session(client)
    size = (3 << 20) + 7
    data = bytes(range(256)) * (size // 256 + 1)
    store = start_store(client, session, 1, size)
    for start in range(0, size, 1 << 20):
        part = encode("GrpcHostBufferStoreRequest", data=data[start : min(start + (1 << 20), size)])
        client.send(store, part, end=start + (1 << 20) >= size)
        client.flush()
    assert client.wait_for_status(store) == (0, "")
    client.send(stream, make_array(1, size))
    client.send(
        stream,
        encode("IfrtRequest", copy_to_host_buffer_request={"array_handle": 1, "host_buffer_handle": 2}),
    )
    client.wait_for_message(stream)
    client.wait_for_message(stream)
    lookup = client.call(f"{SERVICE}HostBufferLookup")
    client.send(lookup, encode("GrpcHostBufferLookupRequest", session_id=session, handle=2), end=True)
    assert client.wait_for_status(lookup) == (0, "")
    parts = [
        MESSAGES.parse("xla.ifrt.proxy.GrpcHostBufferLookupResponse", m) for m in client.messages[lookup]
    ]
    assert b"".join(part.data for part in parts) == data[:size]


def stop_reading(client: SocketClient, session: int, handle: int) -> None:
    """Has the server send a host buffer to a client that opens its windows, and then stops reading."""
    client.h2.increment_flow_control_window(1 << 30)
    lookup = client.call(f"{SERVICE}HostBufferLookup")
    client.h2.increment_flow_control_window(1 << 30, lookup)
    request = encode("GrpcHostBufferLookupRequest", session_id=session, handle=handle)
    client.send(lookup, request, end=True)
    client.flush()


def is_blocked(server: ProxyServer) -> bool:
    """Returns whether a thread writes to a client that does not read."""
    return any(connection._writer.socket._left for connection in server._connections)


def test_a_client_that_does_not_read_stops_nobody(server: ProxyServer, client: SocketClient) -> None:
    stream, session = start_session(client)
    server.registry.session(session).host_buffers.store(5, bytes(64 << 20))
    stop_reading(client, session, 5)
    wait_until(lambda: is_blocked(server))
    # Its own session continues, as do others.
    client.send(stream, make_array(7, 0))
    server.registry.session(session).host_buffers.store(7, b"")
    client.flush()
    wait_until(lambda: server.registry.session(session).counts[0] == 1)
    other = SocketClient(server.path)
    start_session(other)
    other.close()
    wait_until(lambda: len(server.sessions) == 1)
    # Its end is detected, and everything is freed.
    client.close()
    wait_until(lambda: server.sessions == () and not server._connections)


def test_a_client_that_sends_and_does_not_read(
    server: ProxyServer, client: SocketClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_connection, "MAX_CONTROL_BYTES", 10_000)
    start_session(client)
    (connection,) = server._connections
    client._socket.setblocking(False)
    for end in (client._socket, connection._socket):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 10_000)
    pings = memoryview((b"\0\0\x08\6\0\0\0\0\0" + bytes(8)) * 10_000)
    sent = 0

    def send() -> bool:
        nonlocal sent
        with contextlib.suppress(BlockingIOError):
            sent += client._socket.send(pings[sent % len(pings) :])
        return connection._writer.grpc.is_congested

    # The server stops reading when its replies exceed a limit.
    wait_until(send)
    client.close()
    wait_until(lambda: server.sessions == () and not server._connections)


def test_a_client_that_does_not_read_its_replies(
    server: ProxyServer, client: SocketClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_writer, "MAX_PENDING_BYTES", 10_000)
    stream, _ = start_session(client)
    for _ in range(500):
        client.send(stream, encode("IfrtRequest", init_request={}))
    client.flush()
    (connection,) = server._connections
    wait_until(lambda: connection._writer.grpc.pending_bytes(stream) > 10_000)
    assert connection._writer.grpc._streams[stream].unhandled_bytes > 0
    # It reads again, and gets them all.
    for _ in range(500):
        client.wait_for_message(stream)


def test_a_server_closes_at_once_whoever_does_not_read(tmp_path: Path) -> None:
    server = ProxyServer(tmp_path / "socket", ServedDevices(LocalBackend(jax.devices("cpu")), MESSAGES))
    client = SocketClient(server.path)
    _, session = start_session(client)
    server.registry.session(session).host_buffers.store(5, bytes(8 << 20))
    stop_reading(client, session, 5)
    wait_until(lambda: is_blocked(server))
    began = time.monotonic()
    server.close()
    wait_until(lambda: server.sessions == () and not server._connections)
    assert time.monotonic() - began < 10
    client.close()


def test_connections_without_http(server: ProxyServer) -> None:
    with socket.socket(socket.AF_UNIX) as plain:
        plain.settimeout(30)
        plain.connect(str(server.path))
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        while plain.recv(4096):
            pass
    # The server continues.
    client = SocketClient(server.path)
    start_session(client)
    client.close()


def test_closing_the_server_ends_all_sessions(tmp_path: Path) -> None:
    server = ProxyServer(tmp_path / "socket", ServedDevices(LocalBackend(jax.devices("cpu")), MESSAGES))
    client = SocketClient(server.path)
    stream, _ = start_session(client)
    server.close()
    with pytest.raises(ConnectionError):
        client.wait_for_message(stream)
    wait_until(lambda: server.sessions == ())
    assert not server.path.exists()
    client.close()


@pytest.fixture
def transfers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ProxyServer, Path]]:
    """Yields a server, and the folder in which clients write large host buffers to files."""
    folder = tmp_path / "transfers"
    folder.mkdir()
    monkeypatch.setenv(TRANSFER_FOLDER_VARIABLE, str(folder))
    tmp_path.chmod(0o700)
    served = ServedDevices(LocalBackend(jax.devices("cpu")), MESSAGES, folders=PermittedFolders([folder]))
    server = ProxyServer(tmp_path / "socket", served)
    yield server, folder
    server.close()


def read_from_disk(client: SocketClient, session: int, handle: int, size: int) -> tuple[int, str]:
    """Has the server read a host buffer from its file; returns the status."""
    metadata = {"session_id": session, "handle": handle, "buffer_size": size}
    stream = client.call(f"{SERVICE}HostBufferReadFromDisk")
    client.send(stream, encode("GrpcHostBufferReadFromDiskRequest", metadata=metadata), end=True)
    return client.wait_for_status(stream)


@pytest.mark.parametrize("size", [3, 100_000])
def test_a_host_buffer_in_a_file(transfers: tuple[ProxyServer, Path], size: int) -> None:
    server, folder = transfers
    client = SocketClient(server.path)
    _, session = start_session(client)
    (folder / "lt_7").write_bytes(b"x" * size)
    assert read_from_disk(client, session, 7, size) == (0, "")
    assert bytes(server.registry.session(session).host_buffers.take(7)) == b"x" * size
    assert not list(folder.iterdir())
    client.close()


def test_invalid_files_of_host_buffers(
    transfers: tuple[ProxyServer, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, folder = transfers
    client, other = SocketClient(server.path), SocketClient(server.path)
    _, session = start_session(client)
    (tmp_path / "secret").write_bytes(b"xyz")
    (folder / "lt_1").symlink_to(tmp_path / "secret")
    (folder / "lt_2").write_bytes(b"xy")
    os.mkfifo(folder / "lt_3")
    assert read_from_disk(client, session, 1, 3)[0] == 9
    assert read_from_disk(client, session, 2, 3) == (3, "'lt_2' is no file of 3 bytes")
    assert read_from_disk(client, session, 3, 3) == (3, "'lt_3' is no file of 3 bytes")
    assert read_from_disk(client, session, 4, 3) == (
        9,
        "folder of large transfers: No such file or directory",
    )
    # A request that needs one has the same error.
    with pytest.raises(StatusError, match="'lt_2' is no file of 3 bytes"):
        server.registry.session(session).host_buffers.take(2)
    # Another program would write files of the same names.
    _, second = start_session(other)
    code, message = read_from_disk(other, second, 1, 3)
    assert (code, message.partition(";")[2]) == (9, " each program needs its own")
    monkeypatch.setenv(TRANSFER_FOLDER_VARIABLE, str(tmp_path))
    assert read_from_disk(client, session, 5, 3)[0] == 7
    monkeypatch.delenv(TRANSFER_FOLDER_VARIABLE)
    assert read_from_disk(client, session, 6, 3)[1] == f"{TRANSFER_FOLDER_VARIABLE} is not set for the server"
    client.close()
    other.close()

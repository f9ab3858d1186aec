"""Host buffers: bytes that arrive in pieces, and threads that wait for them."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pathways.runtime.proxy import host_buffers
from pathways.runtime.proxy.host_buffers import (
    Arrival,
    FileArrival,
    HostBuffers,
    IncomingBuffer,
    data_header,
    data_of,
    open_file,
)
from pathways.runtime.proxy.wire import descriptors
from pathways.runtime.proxy.wire.frames import MAX_STREAMS
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError

MESSAGES = descriptors.messages()


@pytest.mark.parametrize("size", [0, 1, 127, 128, 300, 16_383, 16_384, 3 << 20])
def test_encoded_messages_equal_those_of_protobuf(size: int) -> None:
    data = bytes(size)
    lookup = MESSAGES["xla.ifrt.proxy.GrpcHostBufferLookupResponse"]
    assert lookup.FromString(data_header(size) + data).data == data
    store = MESSAGES["xla.ifrt.proxy.GrpcHostBufferStoreRequest"](data=data).SerializeToString()
    assert (data_of(store) or b"") == data


@pytest.mark.parametrize(
    "message",
    [b"", b"\x0a", b"\x0a\x05abc", b"\x0a\x01ab", b"\x12\x01a", b"\x0a\xff\xff\xff\xff\xff\x01", b"\x0a\x80"],
)
def test_protobuf_parses_other_messages(message: bytes) -> None:
    assert data_of(message) is None


@pytest.mark.parametrize("size", [0, 5, 100_000, 5 << 20])
def test_a_buffer_arrives_in_parts(size: int) -> None:
    data = np.random.default_rng(0).bytes(size)
    buffer = IncomingBuffer(size)
    for start in range(0, size, 1 << 20):
        buffer.add(memoryview(data)[start : start + (1 << 20)])
    assert buffer.finish() == data


@pytest.mark.parametrize("size", [5, 100_000])
def test_a_buffer_of_another_size(size: int) -> None:
    buffer = IncomingBuffer(size)
    buffer.add(bytes(size - 1))
    with pytest.raises(StatusError, match=f"a host buffer of {size} bytes ended after {size - 1}"):
        buffer.finish()
    with pytest.raises(StatusError, match=f"a host buffer of {size} bytes has more"):
        buffer.add(b"ab")


@pytest.mark.parametrize(
    ("size", "code"),
    [
        (-1, StatusCode.INVALID_ARGUMENT),
        (1 << 60, StatusCode.RESOURCE_EXHAUSTED),
        ((1 << 63) - 1, StatusCode.RESOURCE_EXHAUSTED),
    ],
)
def test_sizes_that_no_buffer_can_have(size: int, code: StatusCode) -> None:
    with pytest.raises(StatusError) as caught:
        IncomingBuffer(size)
    assert caught.value.code == code


def test_memory_grows_with_received_bytes() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    before = resident()
    buffers = [IncomingBuffer(1 << 30) for _ in range(4)]
    buffers[0].add(bytes(1 << 20))
    assert resident() - before < 64 << 20


def test_a_missing_buffer_is_an_error_of_its_request() -> None:
    buffers = HostBuffers()
    raised: list[StatusError] = []

    def take() -> None:
        try:
            buffers.take(1)
        except StatusError as error:
            raised.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    error = StatusError(StatusCode.INVALID_ARGUMENT, "a host buffer of 5 bytes ended after 3")
    buffers.fail(1, error)
    thread.join()
    assert raised == [error]
    assert len(buffers) == 0


class Announced(Arrival):
    """Buffer that is stored as soon as it starts, if there is memory."""

    def __init__(self, buffers: HostBuffers, handle: int, size: int, *, has_memory: bool = True) -> None:
        self.size = size
        self.buffers, self.handle, self.has_memory = buffers, handle, has_memory
        self.is_discarded = False
        buffers.announce(handle, self)

    def start(self) -> bool:
        if self.has_memory:
            self.buffers.store(self.handle, bytes(self.size), is_reserved=True)
        return self.has_memory

    def discard(self) -> None:
        self.is_discarded = True


def test_buffers_beyond_the_maximum_wait_until_others_are_arrays() -> None:
    buffers = HostBuffers(max_bytes=100)
    for handle in (1, 3, 2):
        Announced(buffers, handle, 60)
    assert len(buffers) == 1
    for handle in (1, 2, 3):
        assert len(buffers.take(handle)) == 60
    assert len(buffers) == 0


def test_the_buffer_that_a_request_waits_for_comes_first() -> None:
    """The requests that free the others are behind this one."""
    buffers = HostBuffers(max_bytes=100)
    for handle in (1, 2, 3):
        Announced(buffers, handle, 60)
    assert [len(buffers.take(handle)) for handle in (3, 2, 1)] == [60, 60, 60]


def test_a_requested_buffer_that_the_client_sends_last() -> None:
    """Clients have a limited number of calls, so that others start before it does."""
    buffers = HostBuffers(max_bytes=100)
    for handle in range(2, 2 + MAX_STREAMS):
        Announced(buffers, handle, 60)
    taken: list[Any] = []
    thread = threading.Thread(target=lambda: taken.append(buffers.take(1)))
    thread.start()
    while len(buffers) < MAX_STREAMS // 2:
        time.sleep(0.001)
    Announced(buffers, 1, 60)
    thread.join()
    assert len(taken[0]) == 60


def test_a_buffer_that_cannot_fit_is_an_error_of_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_buffers, "_NO_MEMORY_TIMEOUT_S", 0.01)
    buffers = HostBuffers(max_bytes=100)
    too_large = Announced(buffers, 1, 101)
    without_memory = Announced(buffers, 2, 100, has_memory=False)
    assert (too_large.is_discarded, without_memory.is_discarded) == (True, False)
    with pytest.raises(
        StatusError, match="a host buffer of 101 bytes is too large: a session may have buffers of up to 100"
    ):
        buffers.take(1)
    with pytest.raises(StatusError, match="no memory for a host buffer of 100 bytes"):
        buffers.take(2)
    assert without_memory.is_discarded
    Announced(buffers, 3, 100)
    assert len(buffers.take(3)) == 100


def test_a_buffer_that_is_withdrawn_makes_room() -> None:
    buffers = HostBuffers(max_bytes=100)
    Announced(buffers, 1, 60)
    Announced(buffers, 2, 60)
    buffers.withdraw(2, 60)
    Announced(buffers, 3, 60)
    assert len(buffers.take(1)) == 60
    assert len(buffers.take(3)) == 60
    assert len(buffers) == 0


def write_file(buffers: HostBuffers, handle: int, folder: Path, size: int) -> FileArrival:
    """Announces a buffer of `size` bytes, each of them the handle, that a client has written to a file."""
    (folder / "lt_1").write_bytes(bytes([handle]) * size)
    number = os.open(folder, os.O_RDONLY)
    try:
        arrival = FileArrival(buffers, handle, size, open_file(number, "lt_1", size))
    finally:
        os.close(number)
    buffers.announce(handle, arrival)
    return arrival


def is_open(file: int) -> bool:
    return Path(f"/proc/self/fd/{file}").exists()


def test_files_beyond_the_maximum_are_read_when_others_are_arrays(tmp_path: Path) -> None:
    buffers = HostBuffers(max_bytes=100_000)
    for handle in (1, 2, 3):
        write_file(buffers, handle, tmp_path, 60_000)
    assert len(buffers) == 1
    assert not list(tmp_path.iterdir())
    # A request takes the third first, and the second has to wait for the first.
    for handle in (3, 1, 2):
        assert bytes(buffers.take(handle)) == bytes([handle]) * 60_000


def test_a_file_that_is_too_large_is_an_error_of_its_request(tmp_path: Path) -> None:
    buffers = HostBuffers(max_bytes=100)
    arrival = write_file(buffers, 1, tmp_path, 101)
    assert not is_open(arrival.file)
    with pytest.raises(StatusError, match="a host buffer of 101 bytes is too large"):
        buffers.take(1)


def test_a_file_that_was_cut_while_it_waited_is_an_error_of_its_request(tmp_path: Path) -> None:
    buffers = HostBuffers(max_bytes=100)
    Announced(buffers, 1, 100)
    arrival = write_file(buffers, 2, tmp_path, 60)
    os.truncate(f"/proc/self/fd/{arrival.file}", 59)
    buffers.take(1)
    with pytest.raises(StatusError, match="a host buffer of 60 bytes ended after 59"):
        buffers.take(2)
    Announced(buffers, 3, 100)
    assert len(buffers.take(3)) == 100


def test_files_that_wait_are_closed_with_their_session(tmp_path: Path) -> None:
    buffers = HostBuffers(max_bytes=100)
    arrivals = [write_file(buffers, handle, tmp_path, 60) for handle in (1, 2)]
    assert is_open(arrivals[1].file)
    buffers.close()
    arrivals.append(write_file(buffers, 3, tmp_path, 60))
    assert not any(is_open(arrival.file) for arrival in arrivals)


def test_a_session_has_so_many_host_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_buffers, "MAX_BUFFERS", 2)
    buffers = HostBuffers()
    buffers.store(1, b"a")
    buffers.fail(2, StatusError(StatusCode.CANCELLED, "no"))
    with pytest.raises(StatusError, match="a session may have 2 host buffers"):
        buffers.store(3, b"a")


def test_only_waiting_for_a_buffer_is_watched() -> None:
    watched = []

    @contextlib.contextmanager
    def watching(handle: int) -> Iterator[None]:
        watched.append(handle)
        threading.Thread(target=buffers.store, args=(handle, b"late")).start()
        yield

    buffers = HostBuffers(watching=watching)
    buffers.store(1, b"early")
    assert buffers.take(1) == b"early"
    assert buffers.take(2) == b"late"
    assert watched == [2]

"""Steps and arrays arrive on two connections, in any order."""

from __future__ import annotations

import threading

import jax
import numpy as np
import pytest

from pathways.runtime.hosts.protocol.messages import Chunk, DeviceLayout, MessageError, Put
from pathways.runtime.hosts.worker.array_store import ArrayStore

VALUE = np.arange(4, dtype=np.float32)
DATA = VALUE.tobytes()


def put(number: int) -> Put:
    return Put(number, (4,), "float32", DeviceLayout((0,), (1,), ("x",), ((),)), (0,))


def receive(store: ArrayStore, number: int, begin: int, end: int) -> None:
    chunk = Chunk(number, 0, begin, end - begin)
    store.place(chunk, end - begin)[:] = DATA[begin:end]
    store.add_chunk(chunk)


@pytest.fixture
def store() -> ArrayStore:
    return ArrayStore({0: jax.devices()[0]})


def test_store_waits_for_an_array_to_arrive(store):
    got: list[jax.Array] = []
    step = threading.Thread(target=lambda: got.append(store.get(1)))
    step.start()
    store.begin(put(1))
    receive(store, 1, 0, 8)
    receive(store, 1, 8, 16)
    step.join(10)
    np.testing.assert_array_equal(got[0], VALUE)


def test_store_frees_an_array_before_it_arrives(store):
    store.begin(put(1))
    receive(store, 1, 0, 8)
    store.free([1])
    receive(store, 1, 8, 16)
    assert store.available() == {}
    store.free([2])
    store.begin(put(2))
    receive(store, 2, 0, 16)
    assert store.available() == {}


@pytest.mark.parametrize(
    "chunk", [Chunk(9, 0, 0, 4), Chunk(1, 1, 0, 4), Chunk(1, 0, 14, 4), Chunk(1, 0, -4, 4), Chunk(1, 0, 0, 8)]
)
def test_store_refuses_bytes_of_no_array(store, chunk):
    store.begin(put(1))
    with pytest.raises(MessageError):
        store.place(chunk, 4)

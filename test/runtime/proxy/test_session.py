"""Sessions without sockets: replies to requests, and cleanup."""

from __future__ import annotations

import gc
import random
import weakref

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies
from session_client import MESSAGES, Client, compile_text, module, on_device, over_devices

from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.loading.local_backend import LocalBackend
from pathways.runtime.proxy.sessions.replies import DeferredReply


def test_devices_and_memories(client: Client) -> None:
    reply = client.request("init").init_response
    assert reply.session_id == 7
    assert (reply.platform_name, reply.runtime_type) == ("cpu", "pathways")
    assert [device.id for device in reply.all_devices] == list(range(8))
    assert {memory.memory_space_kind for memory in reply.memories} >= {"device", "pinned_host"}
    assert not reply.all_devices[0].attributes.attributes


def test_slices_are_attributes_of_devices() -> None:
    client = Client(ServedDevices(LocalBackend(jax.devices("cpu"), 2), MESSAGES))
    devices = client.request("init").init_response.all_devices
    assert [device.attributes.attributes["slice_index"].int64_value for device in devices] == [0] * 4 + [
        1
    ] * 4


def test_unequal_slices() -> None:
    with pytest.raises(ValueError, match="8 devices cannot form 3 equal islands"):
        ServedDevices(LocalBackend(jax.devices("cpu"), 3), MESSAGES)


def test_an_error_waits_in_the_array_until_it_is_read(client: Client) -> None:
    reply = client.request("copy_arrays", array_handles=[99], device_ids=[5], result_handles=[2])
    assert reply.response_metadata.status.code == 0
    assert client.fetch(2) == (3, "no array has the handle 99")
    # The error is also in arrays that are created from it.
    client.request("fully_replicated_shard", array_handle=2, result_handle=3)
    ready = client.request("check_value_ready", value_handles=[3])
    assert ready.response_metadata.status.message == "no array has the handle 99"


def test_default_layouts(client: Client) -> None:
    fields = {"dtype": {"kind": "KIND_S4"}, "dims": [2, 3], "device_id": 1}
    reply = client.request("get_default_layout", **fields, memory_kind="pinned_host")
    assert reply.get_default_layout_response.serialized_pjrt_layout == b"{1,0:E(4)}"
    reply = client.request("get_default_layout", **fields, memory_kind="attic")
    assert reply.response_metadata.status.message == "no device has a memory of the kind 'attic'"


def test_errors_that_a_client_makes(client: Client) -> None:
    client.request(
        "make_error_arrays",
        error={"code": "DATA_LOSS", "message": "the slice is lost"},
        array_specs=[{"dtype": {"kind": "KIND_F32"}, "sharding": on_device(0)}],
        array_handles=[4],
    )
    assert client.fetch(4) == (15, "the slice is lost")


def test_requests_that_are_not_supported_are_named(client: Client) -> None:
    reply = client.request("loaded_host_callback_poll")
    assert reply.response_metadata.status.code == 12
    assert "'loaded_host_callback_poll_request'" in reply.response_metadata.status.message
    assert reply.WhichOneof("response") is None


def test_replies_with_a_body_are_counted(client: Client) -> None:
    numbers = []
    for kind in ("init", "check_future", "init", "destruct_array", "delete_array"):
        reply = client.request(kind)
        if reply.WhichOneof("response"):
            numbers.append(reply.response_metadata.seq_num)
    assert numbers == [0, 1, 2, 3]


def test_an_invalid_request_ends_the_session(client: Client) -> None:
    with pytest.raises(ValueError, match="invalid message"):
        client.session.dispatch(b"\xff")


def test_the_end_of_a_session_frees_all_arrays(client: Client) -> None:
    client.put(1, np.ones(2, np.float32))
    client.session.host_buffers.store(9, b"abc")
    value = client.session.state.arrays[1].value
    client.session.close()
    assert client.session.counts == (0, 0, 0, 0)
    sent = len(client.replies)
    deferred = DeferredReply()
    client.session._pending[deferred] = 1
    client.session._reply_later(deferred, MESSAGES["xla.ifrt.proxy.IfrtResponse"]())
    assert len(client.replies) == sent
    assert not value.is_deleted()  # another array may share its buffers


def test_a_failed_array_holds_no_other_array(client: Client) -> None:
    """Neither the arguments of the failed function stay alive, nor frames that raised or read the error."""
    two = "%x: tensor<f32>, %y: tensor<f32>"
    compile_text(client, module("return %x : tensor<f32>").replace("%x: tensor<f32>", two))
    program = client.replies[-1].compile_response.loaded_executable_handle
    client.put(1, np.array(3, np.float32))
    client.put(2, np.array(3, np.float32), device=77)
    held = weakref.ref(client.session.state.arrays[1].value)
    execute = {"loaded_executable_handle": program, "result_array_handle": [3]}
    client.request("loaded_executable_execute", **execute, args_handles=[1, 2])
    assert client.fetch(3) == (3, "no device has the id 77")
    client.request("destruct_array", array_handle=[1])
    gc.disable()
    try:
        assert held() is None
    finally:
        gc.enable()


def test_a_reply_that_fails_late_holds_no_array(client: Client) -> None:
    """One of the arrays that a request waits for fails; the others are freed when the client frees them."""
    client.put(1, np.ones(2, np.float32))
    client.put(2, np.ones(2, np.float32), device=77)
    held = weakref.ref(client.session.state.arrays[1].value)
    deferred = DeferredReply(client.session.state.arrays_of([1, 2]))
    client.session._pending[deferred] = 5
    gc.disable()
    try:
        client.session._reply_later(deferred, MESSAGES["xla.ifrt.proxy.IfrtResponse"]())
        assert client.replies[-1].response_metadata.status.message == "no device has the id 77"
        del deferred
        client.request("destruct_array", array_handle=[1])
        assert held() is None
    finally:
        gc.enable()


def requests_of_a_program() -> list[bytes]:
    """Returns the requests of a client that creates arrays, disassembles and copies them."""
    sent: list[bytes] = []
    client = Client(ServedDevices(LocalBackend(jax.devices("cpu")), MESSAGES))
    dispatch = client.session.dispatch

    def record(data: bytes) -> bytes | None:
        sent.append(data)
        return dispatch(data)

    client.session.dispatch = record  # type: ignore[method-assign]
    whole = {"shape": {"dims": [4]}, "sharding": over_devices([2], 2)}
    client.request("init")
    client.put(1, np.ones(2, np.float32))
    client.put(2, np.ones(2, np.float32), device=1)
    client.request(
        "assemble_array_from_single_device_arrays",
        **whole,
        single_device_array_handles=[1, 2],
        result_handle=3,
    )
    client.request("disassemble_into_single_device_arrays", array_handle=3, result_handles=[4, 5])
    client.request("copy_arrays", array_handles=[1], device_ids=[5], result_handles=[6])
    client.request("check_value_ready", value_handles=[3, 6])
    client.request("get_default_layout", dtype={"kind": "KIND_F32"}, dims=[2, 3])
    client.request("delete_array", array_handle=[1])
    client.fetch(5)
    client.request("destruct_array", array_handle=[1, 2, 3])
    return sent


@hypothesis.settings(max_examples=60)
@hypothesis.given(seed=strategies.integers(0, 2**32))
def test_mutated_requests_get_a_status_or_end_the_session(seed: int) -> None:
    chance = random.Random(seed)
    client = Client(ServedDevices(LocalBackend(jax.devices("cpu")), MESSAGES))
    # A request may wait for a host buffer that is never sent.
    client.session.host_buffers.take = lambda handle: bytes(8)  # type: ignore[method-assign]
    for data in requests_of_a_program():
        mutated = bytearray(data)
        if chance.random() < 0.3:
            mutated[chance.randrange(len(mutated))] = chance.randrange(256)
        try:
            reply = client.session.dispatch(bytes(mutated))
        except ValueError:
            break
        if reply is not None:
            client._read(reply)
    client.session.close()
    assert client.session.counts == (0, 0, 0, 0)

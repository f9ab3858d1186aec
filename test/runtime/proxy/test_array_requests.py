"""Requests of arrays: creation from host buffers and other arrays, reads, deletion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from session_client import MESSAGES, Client, compile_sum, on_device, over_devices, over_rows


def test_an_array_is_put_and_fetched(client: Client) -> None:
    client.put(3, np.arange(6, dtype=np.float32).reshape(2, 3))
    assert client.session.counts == (1, 0, 0, 0)
    np.testing.assert_array_equal(client.fetch(3), np.arange(6))
    client.request("destruct_array", array_handle=[3])
    assert client.session.counts == (0, 0, 0, 0)


def test_shards_are_assembled_taken_apart_and_remapped(client: Client) -> None:
    for i in range(4):
        client.put(i + 1, np.full(2, i, np.float32), device=i)
    client.request(
        "assemble_array_from_single_device_arrays",
        shape={"dims": [8]},
        sharding=over_devices([2], 4),
        single_device_array_handles=[1, 2, 3, 4],
        result_handle=10,
    )
    client.request("disassemble_into_single_device_arrays", array_handle=10, result_handles=[11, 12, 13, 14])
    np.testing.assert_array_equal(client.fetch(13), [2, 2])
    spec = {"dtype": {"kind": "KIND_F32"}, "shape": {"dims": [2]}, "sharding": on_device(3)}
    interval = {
        "from_start": [3],
        "from_end": [4],
        "from_step": [1],
        "to_start": [0],
        "to_end": [1],
        "to_step": [1],
    }
    client.request(
        "remap_arrays",
        plan={"output_specs": [spec], "mappings": [interval]},
        array_handles=[10],
        result_handles=[20],
    )
    np.testing.assert_array_equal(client.fetch(20), [3, 3])


def test_copies_outlive_their_sources(client: Client) -> None:
    client.put(1, np.ones(2, np.float32))
    client.request("copy_arrays", array_handles=[1], device_ids=[5], result_handles=[2])
    future = client.request("delete_array", array_handle=[1]).delete_array_response.deletion_future_handle
    assert client.request("check_future", future_handle=future).response_metadata.status.code == 0
    assert client.request("is_array_deleted", array_handle=1).is_array_deleted_response.deleted
    assert not client.request("is_array_deleted", array_handle=2).is_array_deleted_response.deleted
    np.testing.assert_array_equal(client.fetch(2), [1, 1])
    code, message = client.fetch(1)
    assert code == 3
    assert "deleted" in message


def test_a_result_reuses_the_buffers_of_a_donated_array(client: Client) -> None:
    client.put(1, np.ones(2, np.float32))
    spec = {"dtype": {"kind": "KIND_F32"}, "shape": {"dims": [2]}, "sharding": on_device(0)}
    donate = "ARRAY_COPY_SEMANTICS_DONATE_INPUT"
    client.request(
        "bitcast_arrays", array_handles=[1], array_specs=[spec], result_handles=[2], copy_semantics=donate
    )
    # The client does the same.
    client.request("delete_array", array_handle=[1])
    assert client.request("is_array_deleted", array_handle=1).is_array_deleted_response.deleted
    np.testing.assert_array_equal(client.fetch(2), [1, 1])
    assert client.fetch(1) == (3, "the array was deleted: it was donated")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shape": {"dims": [6]}}, "float32[2] is no shard of float32[6]"),
        ({"dtype": {"kind": "KIND_S32"}}, "float32[2] is no shard of int32[4]"),
    ],
)
def test_shards_of_another_type_or_shape(client: Client, fields: dict[str, Any], message: str) -> None:
    for i in range(2):
        client.put(i + 1, np.ones(2, np.float32), device=i)
    right = {"dtype": {"kind": "KIND_F32"}, "shape": {"dims": [4]}, "sharding": over_rows(2)}
    client.request(
        "assemble_array_from_single_device_arrays",
        **right | fields,
        single_device_array_handles=[1, 2],
        result_handle=3,
    )
    assert client.fetch(3) == (3, message)


def test_a_shard_of_an_array_that_is_cut_is_not_the_array(client: Client) -> None:
    for i in range(2):
        client.put(i + 1, np.ones(2, np.float32), device=i)
    client.request(
        "assemble_array_from_single_device_arrays",
        shape={"dims": [4]},
        sharding=over_rows(2),
        single_device_array_handles=[1, 2],
        result_handle=3,
    )
    client.request("fully_replicated_shard", array_handle=3, result_handle=4)
    assert client.fetch(4) == (3, "an array of shape [4] is not on each device as a whole")


def test_an_array_in_another_layout(client: Client) -> None:
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    client.session.host_buffers.store(1, value.tobytes())
    layout = MESSAGES["xla.ifrt.CompactLayoutProto"](major_to_minor=[1, 0]).SerializeToString()
    client.request(
        "make_array_from_host_buffer",
        dtype={"kind": "KIND_F32"},
        shape={"dims": [2, 3]},
        sharding=on_device(0),
        layout={"serialized_layout": {"type_name": "xla::ifrt::CompactLayout", "data": layout}},
        host_buffer_handle=1,
        array_handle=1,
    )
    np.testing.assert_array_equal(client.fetch(1), np.arange(6))
    # A program that was compiled for the default does not get it.
    handle = compile_sum(client, "2x3xf32")
    fields = {"loaded_executable_handle": handle, "args_handles": [1], "result_array_handle": [2]}
    client.request("loaded_executable_execute", **fields)
    code, message = client.fetch(2)
    assert code == 3
    assert message.startswith("argument 0 has the layout Layout(major_to_minor=(1, 0)")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shape": {"dims": [7]}}, "a host buffer has 24 bytes; float32[7] needs 28"),
        ({"shape": {"dims": [-1]}}, "invalid shape: (-1,)"),
        ({"shape": {"dims": [2**40, 2**40]}}, f"invalid shape: {(2**40, 2**40)}"),
        ({"sharding": on_device(77)}, "no device has the id 77"),
        ({"sharding": over_devices([3], [4, 4])}, "a sharding names a device twice"),
        ({"dtype": {"kind": "KIND_OPAQUE"}}, "arrays of type OPAQUE are not supported by the server"),
        ({"byte_strides": {"strides": [-4]}}, "invalid strides [-4] of float32"),
        (
            {"sharding": {"serialized_sharding": {"type_name": "xla::ifrt::Odd"}}},
            "shardings of the kind 'Odd' are not supported by the server",
        ),
    ],
)
def test_invalid_requests_for_arrays(client: Client, fields: dict[str, Any], message: str) -> None:
    client.session.host_buffers.store(1, bytes(24))
    right = {"dtype": {"kind": "KIND_F32"}, "shape": {"dims": [6]}, "sharding": on_device(0)}
    client.request("make_array_from_host_buffer", **right | fields, host_buffer_handle=1, array_handle=1)
    fetched = client.fetch(1)
    assert fetched[1] == message
    # The host buffer is freed nevertheless.
    assert client.session.counts == (1, 0, 0, 0)


def test_an_array_of_no_shards(client: Client) -> None:
    client.request(
        "assemble_array_from_single_device_arrays", sharding=over_devices([2], [0]), result_handle=1
    )
    assert client.fetch(1) == (3, "an array needs at least one shard")


def test_a_sharding_of_another_number_of_dimensions(client: Client) -> None:
    for handle in (1, 2):
        client.put(handle, np.array(1, np.float32), device=handle - 1)
    client.request(
        "assemble_array_from_single_device_arrays",
        sharding=over_rows(2),
        single_device_array_handles=[1, 2],
        result_handle=3,
    )
    code, message = client.fetch(3)
    assert (code, message[-len("is not one of 0 dimensions") :]) == (3, "is not one of 0 dimensions")


def test_a_request_with_lists_of_different_lengths(client: Client) -> None:
    reply = client.request("reshard_arrays", array_handles=[1, 2], result_handles=[3])
    assert reply.response_metadata.status.code == 3
    expected = "the request has 1 results, 2 arrays, 0 specifications; it needs as many of each"
    assert reply.response_metadata.status.message == expected

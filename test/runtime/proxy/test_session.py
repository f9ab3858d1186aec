"""Sessions without sockets: requests in, replies out."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies

from pathways.compiler.mpmd.from_ifrt import compile_ifrt
from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.sessions.replies import Later
from pathways.runtime.proxy.sessions.session import ProxySession
from pathways.runtime.proxy.wire import descriptors
from pathways.runtime.proxy.wire.statuses import StatusCode
from pathways.runtime.xla import pjrt

MESSAGES = descriptors.messages()


class Client:
    """Sends requests to a session, and reads its replies in their order."""

    def __init__(self, served: ServedDevices) -> None:
        self.replies: list[Any] = []
        self.session = ProxySession(7, served, self._read, lambda work: work())
        self._op_id = 0

    def _read(self, data: bytes) -> None:
        self.replies.append(MESSAGES.parse("xla.ifrt.proxy.IfrtResponse", data))

    def request(self, kind: str, **fields: Any) -> Any:
        """Sends a request; returns the reply, which is there at once."""
        self._op_id += 1
        request = MESSAGES["xla.ifrt.proxy.IfrtRequest"]()
        request.request_metadata.op_id = self._op_id
        body = getattr(request, f"{kind}_request")
        body.SetInParent()
        body.MergeFrom(type(body)(**fields))
        answer = self.session.dispatch(request.SerializeToString())
        if answer is not None:
            self._read(answer)
        reply = self.replies[-1]
        assert reply.response_metadata.op_id == self._op_id
        return reply

    def put(self, handle: int, value: np.ndarray, device: int = 0) -> Any:
        """Makes an array of one device."""
        self.session.host_buffers.store(handle, value.tobytes())
        return self.request(
            "make_array_from_host_buffer",
            dtype={"kind": "KIND_F32"},
            shape={"dims": value.shape},
            sharding=on_device(device),
            host_buffer_handle=handle,
            array_handle=handle,
        )

    def fetch(self, handle: int) -> np.ndarray | tuple[int, str]:
        """Returns the value of an array of floats, flat, or the status of the reply."""
        reply = self.request("copy_to_host_buffer", array_handle=handle, host_buffer_handle=1000)
        if reply.response_metadata.status.code:
            return reply.response_metadata.status.code, reply.response_metadata.status.message
        return np.frombuffer(self.session.host_buffers.take(1000), np.float32)


def on_device(device: int) -> dict[str, Any]:
    """The sharding of an array of one device."""
    data = MESSAGES["xla.ifrt.SingleDeviceShardingProto"](device_id=device).SerializeToString()
    return {"serialized_sharding": {"type_name": "xla::ifrt::SingleDeviceSharding", "data": data}}


def over_devices(shard_shape: list[int], devices: int | Sequence[int]) -> dict[str, Any]:
    """A sharding that names the shape of shards only."""
    proto = MESSAGES["xla.ifrt.ConcreteEvenShardingProto"](
        devices={"device_ids": range(devices) if isinstance(devices, int) else devices},
        shard_shape={"dims": shard_shape},
    )
    return {
        "serialized_sharding": {
            "type_name": "xla::ifrt::ConcreteEvenSharding",
            "data": proto.SerializeToString(),
        }
    }


def over_rows(count: int) -> dict[str, Any]:
    """The sharding of an array of one dimension that is cut for some devices."""
    tiles = {"type": "OTHER", "tile_assignment_dimensions": [count], "tile_assignment_devices": range(count)}
    proto = MESSAGES["xla.ifrt.HloShardingProto"](
        devices={"device_ids": range(count)}, xla_op_sharding=tiles
    ).SerializeToString()
    return {"serialized_sharding": {"type_name": "xla::ifrt::HloSharding", "data": proto}}


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client(ServedDevices(jax.devices("cpu"), MESSAGES))
    yield client
    client.session.close()
    assert client.session.counts == (0, 0, 0, 0)


def test_devices_and_memories(client: Client) -> None:
    reply = client.request("init").init_response
    assert reply.session_id == 7
    assert (reply.platform_name, reply.runtime_type) == ("cpu", "pathways")
    assert [device.id for device in reply.all_devices] == list(range(8))
    assert {memory.memory_space_kind for memory in reply.memories} >= {"device", "pinned_host"}
    assert not reply.all_devices[0].attributes.attributes


def test_slices_are_attributes_of_devices() -> None:
    client = Client(ServedDevices(jax.devices("cpu"), MESSAGES, slices=2))
    devices = client.request("init").init_response.all_devices
    assert [device.attributes.attributes["slice_index"].int64_value for device in devices] == [0] * 4 + [
        1
    ] * 4


def test_unequal_slices() -> None:
    with pytest.raises(ValueError, match="8 devices cannot form 3 equal slices"):
        ServedDevices(jax.devices("cpu"), MESSAGES, slices=3)


def test_an_array_goes_there_and_back(client: Client) -> None:
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


def test_copies_outlive_what_they_are_copies_of(client: Client) -> None:
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


def test_the_buffers_of_a_donated_array_are_those_of_the_result(client: Client) -> None:
    client.put(1, np.ones(2, np.float32))
    spec = {"dtype": {"kind": "KIND_F32"}, "shape": {"dims": [2]}, "sharding": on_device(0)}
    donate = "ARRAY_COPY_SEMANTICS_DONATE_INPUT"
    client.request(
        "bitcast_arrays", array_handles=[1], array_specs=[spec], result_handles=[2], copy_semantics=donate
    )
    # As the client does.
    client.request("delete_array", array_handle=[1])
    assert client.request("is_array_deleted", array_handle=1).is_array_deleted_response.deleted
    np.testing.assert_array_equal(client.fetch(2), [1, 1])
    assert client.fetch(1) == (3, "the array was deleted: it was donated")


def test_an_error_waits_in_the_array_until_it_is_read(client: Client) -> None:
    reply = client.request("copy_arrays", array_handles=[99], device_ids=[5], result_handles=[2])
    assert reply.response_metadata.status.code == 0
    assert client.fetch(2) == (3, "no array has the handle 99")
    # And in what is made of it.
    client.request("fully_replicated_shard", array_handle=2, result_handle=3)
    ready = client.request("check_value_ready", value_handles=[3])
    assert ready.response_metadata.status.message == "no array has the handle 99"


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
        ({"device_ids": [3]}, "a program for devices [0] cannot run on devices [3]"),
        ({"args_handles": [1, 1]}, "2 arguments for 1 operands"),
        (
            {"execute_options": {"custom_options": {"attributes": {"speed": {"int64_value": 3}}}}},
            "options of executions that the server does not know: ['speed']",
        ),
    ],
)
def test_executions_that_the_server_does_not_do(client: Client, fields: dict[str, Any], message: str) -> None:
    handle = compile_sum(client, "2xf32")
    client.put(1, np.ones(2, np.float32))
    right = {"loaded_executable_handle": handle, "args_handles": [1], "result_array_handle": [2]}
    client.request("loaded_executable_execute", **right | {"device_ids": [0]})
    np.testing.assert_array_equal(client.fetch(2), [2, 2])
    client.request("loaded_executable_execute", **right | fields)
    assert client.fetch(2)[1] == message


def test_a_result_without_a_handle(client: Client) -> None:
    client.session.host_buffers.store(1, bytes(8))
    reply = client.request(
        "make_array_from_host_buffer",
        dtype={"kind": "KIND_F32"},
        shape={"dims": [2]},
        sharding=on_device(0),
        host_buffer_handle=1,
    )
    assert reply.response_metadata.status.message == "the client has not chosen the handle of a result"


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
def test_arrays_that_cannot_be_made(client: Client, fields: dict[str, Any], message: str) -> None:
    client.session.host_buffers.store(1, bytes(24))
    right = {"dtype": {"kind": "KIND_F32"}, "shape": {"dims": [6]}, "sharding": on_device(0)}
    client.request("make_array_from_host_buffer", **right | fields, host_buffer_handle=1, array_handle=1)
    fetched = client.fetch(1)
    assert fetched[1] == message
    # The host buffer is freed nevertheless.
    assert client.session.counts == (1, 0, 0, 0)


def test_requests_that_are_not_supported_are_named(client: Client) -> None:
    reply = client.request("loaded_host_callback_poll")
    assert reply.response_metadata.status.code == 12
    assert "'loaded_host_callback_poll_request'" in reply.response_metadata.status.message
    assert reply.WhichOneof("response") is None


def test_programs_that_are_not_supported_are_named(client: Client) -> None:
    reply = client.request("compile", program={"type_name": "xla::ifrt::CustomCallProgram"})
    assert reply.response_metadata.status.code == 12
    assert "'CustomCallProgram'" in reply.response_metadata.status.message


def test_replies_with_a_body_are_counted(client: Client) -> None:
    numbers = []
    for kind in ("init", "check_future", "init", "destruct_array", "delete_array"):
        reply = client.request(kind)
        if reply.WhichOneof("response"):
            numbers.append(reply.response_metadata.seq_num)
    assert numbers == [0, 1, 2, 3]


def test_what_is_no_request_ends_the_session(client: Client) -> None:
    with pytest.raises(ValueError, match="invalid message"):
        client.session.dispatch(b"\xff")


def test_the_end_frees_everything(client: Client) -> None:
    client.put(1, np.ones(2, np.float32))
    client.session.host_buffers.store(9, b"abc")
    value = client.session.state.arrays[1].value
    client.session.close()
    assert client.session.counts == (0, 0, 0, 0)
    sent = len(client.replies)
    later = Later()
    client.session._pending[later] = 1
    client.session._reply_later(later, MESSAGES["xla.ifrt.proxy.IfrtResponse"]())
    assert len(client.replies) == sent
    assert not value.is_deleted()  # another array may share its buffers


def compile_text(client: Client, text: str | bytes, device: int = 0, **options: Any) -> Any:
    """Has a session compile the text of a module for a device; returns the status."""
    build = {"num_replicas": 1, "num_partitions": 1}
    devices = [{"replica_device_ids": [device]}]
    assignment = {"replica_count": 1, "computation_count": 1, "computation_devices": devices}
    proto = MESSAGES["xla.ifrt.XlaCompileOptionsProto"](
        compile_options={"executable_build_options": build | {"device_assignment": assignment}}
    )
    proto.compile_options.MergeFrom(MESSAGES["xla.CompileOptionsProto"](**options))
    return client.request(
        "compile",
        program={
            "type_name": "xla::ifrt::XlaProgram",
            "data": text.encode() if isinstance(text, str) else text,
        },
        compile_options={"data": proto.SerializeToString()},
    ).response_metadata.status


def compile_sum(client: Client, type_: str) -> int:
    """Has a session compile a program that adds an array to itself; returns the handle."""
    text = f"""module @test {{ func.func public @main(%x: tensor<{type_}>) -> tensor<{type_}> {{
      %y = stablehlo.add %x, %x : tensor<{type_}>
      return %y : tensor<{type_}>
    }} }}"""
    assert compile_text(client, text).code == 0
    return client.replies[-1].compile_response.loaded_executable_handle


def module(body: str) -> str:
    """A module with a function of one number."""
    return f"module @test {{ func.func public @main(%x: tensor<f32>) -> tensor<f32> {{ {body} }} }}"


def test_a_program_is_compiled_and_executed(client: Client) -> None:
    double = "%0 = stablehlo.add %x, %x : tensor<f32> return %0 : tensor<f32>"
    assert compile_text(client, module(double)).code == 0
    program = client.replies[-1].compile_response.loaded_executable_handle
    assert client.replies[-1].compile_response.name == "test"
    client.put(1, np.array(3, np.float32))
    request = {"loaded_executable_handle": program, "args_handles": [1]}
    # The first execution tells what results are; from then on, the client names them.
    first = client.request("loaded_executable_execute", **request).loaded_executable_execute_response
    assert [list(output.shape.dims) for output in first.outputs] == [[]]
    np.testing.assert_array_equal(client.fetch(first.outputs[0].array_handle), [6])
    client.request("loaded_executable_execute", **request, result_array_handle=[2])
    np.testing.assert_array_equal(client.fetch(2), [6])


IFRT = """
!a = !ifrt.array<tensor<2xf32>, #ifrt.sharding_param<1 to [0] on 1>, [0]>
!b = !ifrt.array<tensor<2xf32>, #ifrt.sharding_param<1 to [0] on 1>, [1]>
module @moves {
  func.func public @main(%x: !a {ifrt.donated}) -> (!a, !b) attributes {ifrt.function} {
    %0, %c = ifrt.CopyArrays(%x) : (!a) -> !b
    return %x, %0 : !a, !b
  }
}
"""


def test_a_program_on_several_meshes() -> None:
    client = Client(ServedDevices(jax.devices("cpu"), MESSAGES, compile_ifrt=compile_ifrt))
    proto = MESSAGES["xla.ifrt.IfrtIrProgramProto"](ifrt_program=IFRT.encode())
    options = MESSAGES["xla.ifrt.IfrtIrCompileOptionsProto"](device_ids=[3, 4])
    compiled = client.request(
        "compile",
        program={"type_name": "xla::ifrt::IfrtIRProgram", "data": proto.SerializeToString()},
        compile_options={"data": options.SerializeToString()},
    ).compile_response
    assert compiled.name == "moves"
    assert list(compiled.addressable_device_ids) == [3, 4]
    handle = {"loaded_executable_handle": compiled.loaded_executable_handle}
    metadata = client.request("loaded_executable_metadata", **handle).loaded_executable_metadata_response
    assert list(metadata.donated_input_indices.donated_input_indices) == [0]
    client.put(1, np.array([1, 2], np.float32), device=3)
    client.request("loaded_executable_execute", **handle, args_handles=[1], result_array_handle=[2, 3])
    for result in (2, 3):
        np.testing.assert_array_equal(client.fetch(result), [1, 2])
    # Where an argument is elsewhere, each result has the error.
    client.put(4, np.array([1, 2], np.float32), device=0)
    client.request("loaded_executable_execute", **handle, args_handles=[4], result_array_handle=[5, 6])
    for result in (5, 6):
        code, message = client.fetch(result)
        assert code == StatusCode.INVALID_ARGUMENT
        assert message.startswith("program 'moves': argument 0 is on devices [0]")
    costs = client.request("loaded_executable_cost_analysis", **handle).response_metadata.status
    assert costs.message == "the program is no XLA program"
    costs = client.request("loaded_executable_mpmd_cost_analysis", **handle).response_metadata.status
    assert costs.code == 0
    client.request("loaded_executable_destruct", **handle)
    client.request("destruct_array", array_handle=range(1, 7))
    assert client.session.counts[:2] == (0, 0)


def test_a_token_goes_from_program_to_program_and_cannot_be_read(client: Client) -> None:
    token = "%t = stablehlo.create_token : !stablehlo.token return %t : !stablehlo.token"
    compile_text(client, module(token).replace("-> tensor<f32>", "-> !stablehlo.token"))
    made = client.replies[-1].compile_response.loaded_executable_handle
    client.put(1, np.ones((), np.float32))
    client.request(
        "loaded_executable_execute", loaded_executable_handle=made, args_handles=[1], result_array_handle=[2]
    )
    assert "token" in client.fetch(2)[1]
    compile_text(client, module("return %y : tensor<f32>").replace("%x:", "%t: !stablehlo.token, %y:"))
    taken = client.replies[-1].compile_response.loaded_executable_handle
    client.request(
        "loaded_executable_execute",
        loaded_executable_handle=taken,
        args_handles=[2, 1],
        result_array_handle=[3],
    )
    assert client.fetch(3) == [1.0]


def test_a_failed_execution_is_an_error_in_each_result(client: Client) -> None:
    compile_text(client, module("return %x : tensor<f32>"))
    program = client.replies[-1].compile_response.loaded_executable_handle
    reply = client.request(
        "loaded_executable_execute",
        loaded_executable_handle=program,
        args_handles=[99],
        result_array_handle=[2],
    )
    assert reply.response_metadata.status.code == 0
    assert client.fetch(2) == (3, "no array has the handle 99")
    # Also without a program.
    client.request("loaded_executable_execute", loaded_executable_handle=5, result_array_handle=[3])
    assert client.fetch(3) == (3, "no program has the handle 5")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (
            "%0 = stablehlo.custom_call @InspectSharding(%x) : (tensor<f32>) -> tensor<f32> "
            "return %x : tensor<f32>",
            "calls 'InspectSharding', which is not among the calls that JAX makes by itself",
        ),
        (
            "%0 = func.call @main(%x) : (tensor<f32>) -> tensor<f32> return %0 : tensor<f32>",
            "a function that calls itself",
        ),
        (
            "%t = stablehlo.create_token : !stablehlo.token "
            '%0:2 = "stablehlo.infeed"(%t) {infeed_config = ""} : (!stablehlo.token) -> '
            "(tensor<f32>, !stablehlo.token) "
            "return %0#0 : tensor<f32>",
            "has an operation that a program may not have: stablehlo.infeed",
        ),
    ],
)
def test_programs_that_must_not_run(client: Client, body: str, problem: str) -> None:
    status = compile_text(client, module(body))
    assert status.code == 12
    assert problem in status.message


def test_what_is_no_program(client: Client) -> None:
    status = compile_text(client, "module {")
    assert status.code == 3
    assert status.message.startswith("the program is not StableHLO: ")


def test_a_program_with_a_name_that_is_no_text(client: Client) -> None:
    """MLIR names the producer of bytecode that it cannot read, in an exception in which only text may be."""
    status = compile_text(client, b"ML\xefR\x0d\xff\x00\x63")
    assert status.code == 3
    assert status.message.startswith("the program is not StableHLO: ")


@pytest.mark.parametrize(
    ("large", "code", "message"),
    [
        ("tensor<2147483648x2147483648xf32>", 3, f"invalid shape: {(2**31, 2**31)}"),
        (
            "tensor<1048576x65536xf32>",
            8,
            "the program has a value of 68719476736 elements; XLA computes at most 34359738368 on a CPU",
        ),
    ],
)
def test_a_program_with_values_that_are_too_large(
    client: Client, large: str, code: int, message: str
) -> None:
    body = f"%0 = stablehlo.broadcast_in_dim %x, dims = [] : (tensor<f32>) -> {large} return %x : tensor<f32>"
    status = compile_text(client, module(body))
    assert (status.code, status.message) == (code, message)


def test_a_program_with_a_mesh_that_is_too_large(client: Client) -> None:
    text = module("return %x : tensor<f32>").replace(
        "{ func", '{ sdy.mesh @mesh = <["x"=4611686018427387903, "y"=2]> func'
    )
    status = compile_text(client, text)
    assert (status.code, status.message) == (3, f"the program has a mesh of {[2**62 - 1, 2]}")


@pytest.mark.parametrize(
    "options",
    [
        # Makes room for as many numbers as it says.
        {"device_assignment": {"replica_count": (1 << 31) - 1}},
        {"num_partitions": 1, "use_auto_spmd_partitioning": True, "auto_spmd_partitioning_mesh_shape": [-1]},
        {"result_layout": {"element_type": "TUPLE"}},
    ],
)
def test_options_of_the_compiler_that_it_would_not_survive(client: Client, options: dict[str, Any]) -> None:
    """The server sets itself what describes devices, and leaves out what JAX does not use."""
    status = compile_text(client, module("return %x : tensor<f32>"), executable_build_options=options)
    assert status.code == 0


def test_options_of_the_compiler_for_other_operands(client: Client) -> None:
    options = {"allow_spmd_sharding_propagation_to_parameters": [True, False]}
    status = compile_text(client, module("return %x : tensor<f32>"), executable_build_options=options)
    assert status.code == 3
    assert status.message.endswith("allow_spmd_sharding_propagation_to_parameters has 2 values for 1")


def test_an_array_that_failed_holds_nothing_else(client: Client) -> None:
    """Neither the arguments of what failed, nor the frames in which the error was raised or read."""
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


def test_an_array_of_no_shards(client: Client) -> None:
    client.request(
        "assemble_array_from_single_device_arrays", sharding=over_devices([2], [0]), result_handle=1
    )
    assert client.fetch(1) == (3, "an array needs at least one shard")


def test_a_donated_argument_that_is_missing_cannot_be_kept(client: Client) -> None:
    donating = "func.func public @main(%x: tensor<f32> {tf.aliasing_output = 0 : i32}) -> tensor<f32>"
    text = f"module @test {{ {donating} {{ %0 = stablehlo.sine %x : tensor<f32> return %0 : tensor<f32> }} }}"
    compile_text(client, text)
    program = client.replies[-1].compile_response.loaded_executable_handle
    client.request(
        "loaded_executable_execute",
        loaded_executable_handle=program,
        execute_options={"non_donatable_input_indices": [0]},
        result_array_handle=[1],
    )
    assert client.fetch(1) == (3, "0 arguments for 1 operands")


def test_a_request_with_more_of_one_than_of_the_others(client: Client) -> None:
    reply = client.request("reshard_arrays", array_handles=[1, 2], result_handles=[3])
    assert reply.response_metadata.status.code == 3
    expected = "the request has 1 results, 2 arrays, 0 specifications; it needs as many of each"
    assert reply.response_metadata.status.message == expected


@pytest.mark.parametrize(
    ("name", "value", "effect"),
    [
        ("xla_dump_to", {"string_field": "/tmp/x"}, "use files"),
        ("xla_unsupported_crash_on_hlo_pass_silent_hlo_change", {"bool_field": True}, "end"),
    ],
)
def test_options_of_the_compiler_that_are_the_servers(
    client: Client, name: str, value: dict[str, Any], effect: str
) -> None:
    overrides = {name: value}
    status = compile_text(client, module("return %x : tensor<f32>"), env_option_overrides=overrides)
    assert status.code == 7
    assert f"{name!r} would have the server {effect}" in status.message
    # Those that come from flags of the client are left out.
    if "bool_field" in value:
        own = pjrt.compile_options(jax.devices("cpu")[:1], 1, 1).SerializeAsString()
        flags = MESSAGES.parse("xla.CompileOptionsProto", own).executable_build_options.debug_options
        setattr(flags, name, True)
        options = {"debug_options": flags}
        text = module("%0 = stablehlo.add %x, %x : tensor<f32> return %0 : tensor<f32>")
        assert compile_text(client, text, executable_build_options=options).code == 0


def test_a_program_with_a_name_that_holds_nul(client: Client) -> None:
    text = module("return %x : tensor<f32>").replace(
        "@test", '@test attributes {mhlo.a = {"b\\00c" = @main}}'
    )
    assert compile_text(client, text).code == 0


def test_a_second_start_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW_CACHE_DIR", str(tmp_path))
    donating = "func.func public @main(%x: tensor<f32> {tf.aliasing_output = 0 : i32}) -> tensor<f32>"
    text = f"module @test {{ {donating} {{ %0 = stablehlo.sine %x : tensor<f32> return %0 : tensor<f32> }} }}"
    replies = []
    for _ in range(2):
        client = Client(ServedDevices(jax.devices("cpu"), MESSAGES))
        assert compile_text(client, text).code == 0
        program = client.replies[-1].compile_response.loaded_executable_handle
        reply = client.request("loaded_executable_metadata", loaded_executable_handle=program)
        metadata = reply.loaded_executable_metadata_response
        assert list(metadata.donated_input_indices.donated_input_indices) == [0]
        replies.append(metadata.output_layouts_list)
        monkeypatch.setattr(pjrt, "compile_module", None)
    assert replies[0] == replies[1]


def requests_of_a_program() -> list[bytes]:
    """The requests of a client that makes arrays, takes them apart and copies them."""
    sent: list[bytes] = []
    client = Client(ServedDevices(jax.devices("cpu"), MESSAGES))
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
    client = Client(ServedDevices(jax.devices("cpu"), MESSAGES))
    # A request may wait for a host buffer that nobody sends.
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

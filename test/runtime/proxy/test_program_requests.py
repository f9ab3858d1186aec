"""Requests of programs: compilation, execution, and rejections."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from session_client import MESSAGES, Client, compile_sum, compile_text, module, on_device

from pathways.compiler.mpmd.from_ifrt import schedule_ifrt
from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.loading.local_backend import LocalBackend
from pathways.runtime.proxy.loading.program_cache import ProgramCache
from pathways.runtime.proxy.wire.statuses import StatusCode
from pathways.runtime.xla import pjrt


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


def test_programs_that_are_not_supported_are_named(client: Client) -> None:
    reply = client.request("compile", program={"type_name": "xla::ifrt::OtherProgram"})
    assert reply.response_metadata.status.code == 12
    assert "'OtherProgram'" in reply.response_metadata.status.message


def test_colocated_python_is_left_to_the_client(client: Client) -> None:
    reply = client.request("compile", program={"type_name": "xla::ifrt::CustomCallProgram"})
    assert reply.response_metadata.status.code == 12
    # JAX looks for these words.
    assert "PjRtCompiler requires an HloProgram" in reply.response_metadata.status.message


def test_a_program_is_compiled_and_executed(client: Client) -> None:
    double = "%0 = stablehlo.add %x, %x : tensor<f32> return %0 : tensor<f32>"
    assert compile_text(client, module(double)).code == 0
    program = client.replies[-1].compile_response.loaded_executable_handle
    assert client.replies[-1].compile_response.name == "test"
    client.put(1, np.array(3, np.float32))
    request = {"loaded_executable_handle": program, "args_handles": [1]}
    # The reply to the first execution describes the results; then the client chooses their handles.
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
    client = Client(ServedDevices(LocalBackend(jax.devices("cpu")), MESSAGES, schedule_ifrt=schedule_ifrt))
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
    # With an argument on other devices, each result has the error.
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


def test_a_token_is_passed_between_programs_and_cannot_be_read(client: Client) -> None:
    token = "%t = stablehlo.create_token : !stablehlo.token return %t : !stablehlo.token"
    compile_text(client, module(token).replace("-> tensor<f32>", "-> !stablehlo.token"))
    creator = client.replies[-1].compile_response.loaded_executable_handle
    client.put(1, np.ones((), np.float32))
    client.request(
        "loaded_executable_execute",
        loaded_executable_handle=creator,
        args_handles=[1],
        result_array_handle=[2],
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
            r'%0 = stablehlo.custom_call @InspectSharding(%x) {backend_config = "\FF"} : '
            "(tensor<f32>) -> tensor<f32> return %x : tensor<f32>",
            "calls 'InspectSharding' (jax.debug.inspect_array_sharding ",
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


LAYOUT = "@LayoutConstraint(%x) : (tensor<1xf32>) -> tensor<f32>"
ALLOCATED = "@AllocateBuffer(%x) : (tensor<1xf32>) -> tensor<1xf32>"
SPARSE = (
    "@cpu_csr_sparse_dense_ffi(%x, %i, %i, %x) : "
    "(tensor<1xf32>, tensor<1xi32>, tensor<1xi32>, tensor<1xf32>) -> tensor<99xf32>"
)
RAGGED = (
    "@ragged_all_to_all(%x, %x, %i, %i, %i, %i) {{ {} }} : (tensor<1xf32>, tensor<1xf32>, "
    "tensor<1xi32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) -> tensor<1xf32>"
)
TYPED = "api_version = 4 : i32, backend_config = {{replica_groups = dense<0> : tensor<1x1xi64>{}}}"


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (LAYOUT, "calls 'LayoutConstraint' on anything but one value"),
        (ALLOCATED, "calls 'AllocateBuffer' with operands or without one result"),
        (SPARSE, "calls 'cpu_csr_sparse_dense_ffi' with operands or attributes of other types than"),
        (RAGGED.format(""), "calls 'ragged_all_to_all' with operands or attributes of other types"),
        (RAGGED.format(TYPED.format("")), "calls 'ragged_all_to_all' with operands or attributes"),
        # XLA has it for GPUs.
        (RAGGED.format(TYPED.format(", channel_id = 1 : i64")), "is not supported by XLA:CPU"),
    ],
)
def test_calls_with_operands_that_xla_would_not_survive(client: Client, call: str, problem: str) -> None:
    function = "func.func public @main(%x: tensor<1xf32>, %i: tensor<1xi32>) -> tensor<1xf32>"
    result = "%0" if call.endswith("-> tensor<1xf32>") else "%x"
    body = f"%0 = stablehlo.custom_call {call} return {result} : tensor<1xf32>"
    status = compile_text(client, f"module @test {{ {function} {{ {body} }} }}")
    assert status.code == 12
    assert problem in status.message


@pytest.mark.parametrize(
    ("starts", "columns"),
    [([0, 1, 3], [1, 0, 1]), ([0, 1, 2_000_000_000], [1, -2_000_000_000, 2_000_000_000])],
    ids=["valid", "bounded"],
)
def test_indices_of_sparse_matrices_are_bounded(
    client: Client, starts: list[int], columns: list[int]
) -> None:
    """The kernel of JAX would read memory at any index."""
    text = f"""module @test {{
      func.func public @main(%x: tensor<3xf32>, %d: tensor<2xf32>) -> tensor<2xf32> {{
      %s = stablehlo.constant dense<{starts}> : tensor<3xi32>
      %c = stablehlo.constant dense<{columns}> : tensor<3xi32>
      %0 = stablehlo.custom_call @cpu_csr_sparse_dense_ffi(%x, %s, %c, %d) {{api_version = 4 : i32}} :
        (tensor<3xf32>, tensor<3xi32>, tensor<3xi32>, tensor<2xf32>) -> tensor<2xf32>
      return %0 : tensor<2xf32>
    }} }}"""
    assert compile_text(client, text).code == 0
    program = client.replies[-1].compile_response.loaded_executable_handle
    client.put(1, np.array([1, 2, 3], np.float32))
    client.put(2, np.array([10, 100], np.float32))
    client.request(
        "loaded_executable_execute",
        loaded_executable_handle=program,
        args_handles=[1, 2],
        result_array_handle=[3],
    )
    np.testing.assert_array_equal(client.fetch(3), [100, 320])


def test_invalid_programs(client: Client) -> None:
    status = compile_text(client, "module {")
    assert status.code == 3
    assert status.message.startswith("the program is not StableHLO: ")


def test_a_program_with_an_invalid_name(client: Client) -> None:
    """For bytecode that it cannot read, MLIR raises an exception with the producer, which must be text."""
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
        # XLA would allocate as many numbers as the option says.
        {"device_assignment": {"replica_count": (1 << 31) - 1}},
        {"num_partitions": 1, "use_auto_spmd_partitioning": True, "auto_spmd_partitioning_mesh_shape": [-1]},
        {"result_layout": {"element_type": "TUPLE"}},
    ],
)
def test_options_of_the_compiler_that_it_would_not_survive(client: Client, options: dict[str, Any]) -> None:
    """The server sets options that describe devices itself, and leaves out those that JAX does not use."""
    status = compile_text(client, module("return %x : tensor<f32>"), executable_build_options=options)
    assert status.code == 0


def test_options_of_the_compiler_for_other_operands(client: Client) -> None:
    options = {"allow_spmd_sharding_propagation_to_parameters": [True, False]}
    status = compile_text(client, module("return %x : tensor<f32>"), executable_build_options=options)
    assert status.code == 3
    assert status.message.endswith("allow_spmd_sharding_propagation_to_parameters has 2 values for 1")


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


@pytest.mark.parametrize(
    ("name", "value", "effect"),
    [
        ("xla_dump_to", {"string_field": "/tmp/x"}, "use files"),
        ("xla_unsupported_crash_on_hlo_pass_silent_hlo_change", {"bool_field": True}, "end"),
        ("xla_disable_all_hlo_passes", {"bool_field": True}, "end"),
        ("xla_run_hlo_passes_starting_from", {"string_field": "dce"}, "end"),
        ("xla_cpu_collective_call_terminate_timeout_seconds", {"int_field": 0}, "end"),
        ("xla_backend_extra_options", {"string_field": "unknown=1"}, "end"),
        ("xla_gpu_detect_nan", {"string_field": "fail"}, "end"),
    ],
)
def test_options_of_the_compiler_that_are_the_servers(
    client: Client, name: str, value: dict[str, Any], effect: str
) -> None:
    overrides = {name: value}
    status = compile_text(client, module("return %x : tensor<f32>"), env_option_overrides=overrides)
    assert status.code == 7
    assert f"{name!r} would have the server {effect}" in status.message
    # Options from flags of the client are left out.
    if "bool_field" in value:
        own = pjrt.compile_options(jax.devices("cpu")[:1], 1, 1).SerializeAsString()
        flags = MESSAGES.parse("xla.CompileOptionsProto", own).executable_build_options.debug_options
        setattr(flags, name, True)
        options = {"debug_options": flags}
        text = module("%0 = stablehlo.add %x, %x : tensor<f32> return %0 : tensor<f32>")
        assert compile_text(client, text, executable_build_options=options).code == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("xla_embed_ir_in_executable", {"bool_field": True}),
        ("xla_dump_max_hlo_modules", {"int_field": 200}),
        ("xla_gpu_auto_spmd_partitioning_memory_budget_ratio", {"double_field": 0.5}),
    ],
)
def test_options_of_the_compiler_that_are_the_clients(
    client: Client, name: str, value: dict[str, Any]
) -> None:
    text = module("return %x : tensor<f32>")
    assert compile_text(client, text, env_option_overrides={name: value}).code == 0


def test_flags_of_the_client_that_would_crash_the_server(client: Client) -> None:
    """The `XLA_FLAGS` of a client are sent with each program."""
    own = pjrt.compile_options(jax.devices("cpu")[:1], 1, 1).SerializeAsString()
    flags = MESSAGES.parse("xla.CompileOptionsProto", own).executable_build_options.debug_options
    flags.xla_backend_extra_options["unknown"] = "1"
    flags.xla_enable_hlo_passes_only.append("dce")
    flags.xla_run_hlo_passes_starting_from = "dce"
    flags.xla_cpu_collective_call_terminate_timeout_seconds = 0
    text = module("%0 = stablehlo.add %x, %x : tensor<f32> return %0 : tensor<f32>")
    assert compile_text(client, text, executable_build_options={"debug_options": flags}).code == 0


@pytest.mark.parametrize(
    ("count", "text"), [({"int_field": 1 << 30}, "1073741824"), ({"string_field": "-1"}, "-1")]
)
def test_parts_that_xla_would_make_for_ever(client: Client, count: dict[str, Any], text: str) -> None:
    name = "xla_cpu_parallel_codegen_split_count"
    expected = f"the compiler option {name} is {text}; the server accepts 1 to 1024"
    program = module("return %x : tensor<f32>")
    status = compile_text(client, program, env_option_overrides={name: count})
    assert (status.code, status.message) == (3, expected)
    own = pjrt.compile_options(jax.devices("cpu")[:1], 1, 1).SerializeAsString()
    flags = MESSAGES.parse("xla.CompileOptionsProto", own).executable_build_options.debug_options
    setattr(flags, name, int(text))
    status = compile_text(client, program, executable_build_options={"debug_options": flags})
    assert (status.code, status.message) == (3, expected)


def test_a_program_with_a_name_that_holds_nul(client: Client) -> None:
    text = module("return %x : tensor<f32>").replace(
        "@test", '@test attributes {mhlo.a = {"b\\00c" = @main}}'
    )
    assert compile_text(client, text).code == 0


def test_a_second_start_loads_compiled_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW_CACHE_DIR", str(tmp_path))
    donating = "func.func public @main(%x: tensor<f32> {tf.aliasing_output = 0 : i32}) -> tensor<f32>"
    text = f"module @test {{ {donating} {{ %0 = stablehlo.sine %x : tensor<f32> return %0 : tensor<f32> }} }}"
    replies = []
    for _ in range(2):
        client = Client(ServedDevices(LocalBackend(jax.devices("cpu")), MESSAGES))
        assert compile_text(client, text).code == 0
        program = client.replies[-1].compile_response.loaded_executable_handle
        reply = client.request("loaded_executable_metadata", loaded_executable_handle=program)
        metadata = reply.loaded_executable_metadata_response
        assert list(metadata.donated_input_indices.donated_input_indices) == [0]
        replies.append(metadata.output_layouts_list)
        monkeypatch.setattr(pjrt, "compile_module", None)
        while not list(tmp_path.glob("executables/*.code")):
            time.sleep(0.001)
    assert replies[0] == replies[1]


def test_a_reply_does_not_wait_until_code_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    monkeypatch.setenv("PW_CACHE_DIR", str(tmp_path))
    replied, stored = threading.Event(), threading.Event()
    serialize = pjrt.serialize

    def serialize_after_reply(executable: Any) -> bytes | None:
        assert replied.wait(30)
        stored.set()
        return serialize(executable)

    monkeypatch.setattr(pjrt, "serialize", serialize_after_reply)
    assert compile_text(client, returning(3)).code == 0
    replied.set()
    assert stored.wait(30)


def programs_of(client: Client, *texts: str) -> list[Any]:
    """Compiles programs, and returns what sessions execute for them."""
    for text in texts:
        assert compile_text(client, text).code == 0
    return [*client.session.state.programs.values()]


def returning(number: int) -> str:
    return module(f"%0 = stablehlo.constant dense<{number}.0> : tensor<f32> return %0 : tensor<f32>")


def test_a_program_that_is_sent_again_is_loaded_already() -> None:
    served = ServedDevices(LocalBackend(jax.devices("cpu")), MESSAGES)
    first, second = Client(served), Client(served)
    (loaded,) = programs_of(first, returning(1))
    first.session.close()
    (again,) = programs_of(second, returning(1))
    _, other = programs_of(second, returning(2))
    assert again is loaded
    assert other is not loaded
    assert compile_text(second, returning(1), device=1).code == 0
    elsewhere = [*second.session.state.programs.values()][-1]
    assert [device.id for device in elsewhere.devices] == [1]


def test_the_order_of_options_makes_no_other_program(client: Client) -> None:
    """Clients serialise them in any order."""
    options = {
        f"xla_cpu_{name}": {"bool_field": True} for name in ("enable_fast_math", "enable_fast_min_max")
    }
    for order in (options, dict(reversed(options.items()))):
        assert compile_text(client, returning(1), env_option_overrides=order).code == 0
    one, other = client.session.state.programs.values()
    assert one is other


@pytest.mark.parametrize("limit", [None, 1 << 30])
def test_a_limit_of_memory_frees_programs_that_no_session_has(limit: int | None) -> None:
    client = Client(ServedDevices(LocalBackend(jax.devices("cpu")), MESSAGES, max_memory=limit))
    loaded = [weakref.ref(program) for program in programs_of(client, returning(1))]
    client.session.close()
    gc.collect()
    assert [program() is not None for program in loaded] == [limit is None]


@pytest.mark.parametrize(("max_count", "max_bytes"), [(2, 1000), (1000, 20)])
def test_programs_that_were_not_used_for_long_are_freed(max_count: int, max_bytes: int) -> None:
    cache = ProgramCache[Any](max_count, max_bytes)
    compiled: Any = [object() for _ in range(3)]
    sent = [b"%d" % number * 10 for number in range(3)]
    cache.add(sent[0], b"", compiled[0])
    cache.add(sent[1], b"", compiled[1])
    cache.add(sent[1], b"", compiled[2])  # Two sessions have compiled it at once.
    assert cache.find(sent[0], b"") is compiled[0]
    assert cache.find(sent[0], b"options") is None
    cache.add(sent[2], b"", compiled[2])
    assert [cache.find(program, b"") for program in sent] == [compiled[0], None, compiled[2]]
    cache.add(bytes(max_bytes + 1), b"", compiled[0])
    # A program above the limit replaces no other.
    assert cache.find(bytes(max_bytes + 1), b"") is None
    assert cache.find(sent[2], b"") is compiled[2]

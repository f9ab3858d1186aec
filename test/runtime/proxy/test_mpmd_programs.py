"""Programs in IFRT IR: compiled for a client, and executed with its arrays."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir

import pathways as pw
from pathways.compiler.lower.bundles import packed
from pathways.compiler.mpmd.from_ifrt import schedule_ifrt
from pathways.dialect import load_ifrt, make_context
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.runtime.bundle.carrier import carrier_of
from pathways.runtime.local import memory
from pathways.runtime.proxy.arrays.local_engine import LocalEngine
from pathways.runtime.proxy.arrays.placements import ArrayPlacement, ArraySpec
from pathways.runtime.proxy.arrays.proxy_array import ProxyArray
from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.loading.local_backend import LocalBackend
from pathways.runtime.proxy.mpmd_programs import MpmdProgram
from pathways.runtime.proxy.programs import compile_program
from pathways.runtime.proxy.wire import descriptors
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError
from pathways.runtime.xla import ifrt

ENGINE = LocalEngine()

MESSAGES = descriptors.messages()

MESHES = """
!a = !ifrt.array<tensor<4xf32>, #ifrt.sharding_param<2 to [0] on 2>, [0, 1]>
!b = !ifrt.array<tensor<4xf32>, #ifrt.sharding_param<1 to [0] on 1>, [2]>
module @step {
  func.func public @main(%x: !a {ifrt.donated}, %y: !b) -> (!a, !b, !b, !b) attributes {ifrt.function} {
    %0, %c0 = ifrt.Call @double::@main(%x) on devices [0, 1] {ifrt.mesh_name = "first"} : (!a) -> !a
    %1, %c1 = ifrt.Reshard(%0) : (!a) -> !b
    %2, %c2 = ifrt.Call @add::@main(%1, %y) on devices [2] {ifrt.mesh_name = "second"} : (!b, !b) -> !b
    return %0, %2, %2, %y : !a, !b, !b, !b
  }
  module @double <sym_visibility = "private"> {
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = stablehlo.add %x, %x : tensor<4xf32>
      return %0 : tensor<4xf32>
    }
  }
  module @add <sym_visibility = "private"> {
    func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
      %0 = stablehlo.add %x, %y : tensor<4xf32>
      return %0 : tensor<4xf32>
    }
  }
}
"""
"""A program on two slices, with two results of the same value, and an argument as a result."""

X, Y = np.arange(4, dtype=np.float32), np.full(4, 10, np.float32)


@pytest.fixture(scope="module")
def served() -> ServedDevices:
    return ServedDevices(LocalBackend(jax.devices("cpu")), MESSAGES, schedule_ifrt=schedule_ifrt)


def bytecode(text: str) -> bytes:
    context = make_context()
    load_ifrt(context)
    return bytecode_of(ir.Module.parse(text, context))


def compiled(
    served: ServedDevices,
    program: bytes,
    devices: tuple[int, ...] = (4, 5, 7),
    options: dict[str, Any] | None = None,
    **fields: Any,
) -> MpmdProgram:
    """Compiles a program as a client sends it."""
    proto = MESSAGES["xla.ifrt.IfrtIrProgramProto"](ifrt_program=program, **fields)
    chosen = MESSAGES["xla.ifrt.IfrtIrCompileOptionsProto"](device_ids=devices, **options or {})
    serialized = MESSAGES["xla.ifrt.Serialized"]
    result = compile_program(
        served,
        serialized(type_name="xla::ifrt::IfrtIRProgram", data=proto.SerializeToString()),
        serialized(type_name="xla::ifrt::IfrtIRCompileOptions", data=chosen.SerializeToString()),
    )
    assert isinstance(result, MpmdProgram)
    return result


@pytest.fixture(scope="module")
def program(served: ServedDevices) -> MpmdProgram:
    return compiled(served, bytecode(MESHES))


def array(spec: ArraySpec, value: np.ndarray) -> ProxyArray:
    """Returns an array of a client, with any sharding that a result may have."""
    return ProxyArray(spec, jax.device_put(value, spec.placement.sharding))


def arguments(program: MpmdProgram) -> list[ProxyArray]:
    return [array(spec, value) for spec, value in zip(program.parameters, (X, Y), strict=True)]


def test_program_on_two_slices(program: MpmdProgram) -> None:
    results = program.execute(arguments(program))
    values = [np.asarray(result.read()[1]) for result in results]
    for value, expected in zip(values, (2 * X, 2 * X + Y, 2 * X + Y, Y), strict=True):
        np.testing.assert_array_equal(value, expected)
    assert [[device.id for device in result.spec.placement.devices] for result in results if result.spec] == [
        [4, 5],
        [7],
        [7],
        [7],
    ]
    assert [shard.shape for shard in ENGINE.shards_of(results[0])] == [(2,), (2,)]
    assert [device.id for device in program.devices] == [4, 5, 7]


def test_metadata(program: MpmdProgram) -> None:
    metadata = MESSAGES["xla.ifrt.proxy.LoadedExecutableMetadataResponse"]()
    program.describe(metadata)
    assert list(metadata.donated_input_indices.donated_input_indices) == [0]
    assert len(metadata.parameter_shardings.shardings) == 2
    assert len(metadata.output_shardings.shardings) == 4
    assert metadata.output_layouts_error.code == StatusCode.UNIMPLEMENTED
    stats = metadata.mpmd_compiled_memory_stats.compiled_memory_stats
    assert {name: stats[name].argument_size_in_bytes for name in stats} == {"first": 16, "second": 16}
    assert program.needed_bytes >= 16 + 3 * 16
    costs = MESSAGES["xla.ifrt.proxy.LoadedExecutableMpmdCostAnalysisResponse"]()
    program.describe_costs(costs)
    assert set(costs.attributes.attributes) >= {"double", "add"}
    assert costs.attributes.attributes["add"].attributes["flops"].float_value == 4
    response = MESSAGES["xla.ifrt.proxy.CompileResponse"]()
    program.describe_slices(response)
    slices = response.mpmd_addressable_devices.mpmd_addressable_devices
    assert {name: list(slices[name].mpmd_addressable_device_ids) for name in slices} == {
        "first": [4, 5],
        "second": [7],
    }


def test_only_donated_arguments_are_consumed(program: MpmdProgram) -> None:
    first, second = arguments(program)
    program.execute([first, second])
    assert [one.read()[1].is_deleted() for one in (first, second)] == [True, False]
    kept, _ = arguments(program)
    results = program.execute([kept, second], undonated=[0])
    np.testing.assert_array_equal(kept.read()[1], X)
    np.testing.assert_array_equal(results[0].read()[1], 2 * X)


def test_results_share_no_buffers(program: MpmdProgram) -> None:
    """A client may delete or donate each result."""
    operands = arguments(program)
    results = program.execute(operands)
    for deleted in (results[1], results[3]):
        deleted.read()[1].delete()
    np.testing.assert_array_equal(results[2].read()[1], 2 * X + Y)
    np.testing.assert_array_equal(operands[1].read()[1], Y)


def placed(spec: ArraySpec, *devices: int, hlo: Any = None) -> ArraySpec:
    chosen = tuple(jax.devices("cpu")[number] for number in devices)
    return ArraySpec(spec.dtype, spec.shape, ArrayPlacement(chosen, None, hlo))


def test_arguments_that_are_none_of_the_program(program: MpmdProgram) -> None:
    first, second = program.parameters
    floats = np.dtype(np.float32)
    for number, wrong, message in (
        (0, ArraySpec(floats, (2,), first.placement), "argument 0 is float32[2], expected float32[4]"),
        (
            1,
            ArraySpec(np.dtype(np.int32), (4,), second.placement),
            "argument 1 is int32[4], expected float32[4]",
        ),
        (1, placed(second, 6), "argument 1 is on devices [6]"),
        (0, placed(first, 5, 4, hlo=first.placement.hlo), "argument 0 is on devices [5, 4]"),
        (0, placed(first, 4, 5, hlo=ifrt.replicated()), "argument 0 is on devices [4, 5] as {replicated}"),
    ):
        operands = arguments(program)
        operands[number] = array(wrong, np.zeros(wrong.shape, wrong.dtype))
        for result in program.execute(operands):
            with pytest.raises(StatusError) as raised:
                result.read()
            assert raised.value.code == StatusCode.INVALID_ARGUMENT
            assert message in raised.value.message
    equal = placed(first, 4, 5, hlo=first.placement.hlo)
    assert program.execute([array(equal, X), arguments(program)[1]])[0].read()


def test_errors_of_arguments_become_errors_of_results(program: MpmdProgram) -> None:
    lost = StatusError(StatusCode.DATA_LOSS, "island1 was lost")
    results = program.execute([arguments(program)[0], ProxyArray(program.parameters[1], lost)])
    assert [str(result.value) for result in results] == ["DATA_LOSS: island1 was lost"] * 4
    (result, *_) = program.execute(arguments(program)[:1])
    assert str(result.value) == "INVALID_ARGUMENT: program 'step' has 2 arguments, got 1"


def test_an_array_that_is_donated_and_passed_twice(served: ServedDevices) -> None:
    text = """
      !a = !ifrt.array<tensor<4xf32>, #ifrt.sharding_param<1 to [0] on 1>, [0]>
      module @twice {
        func.func public @main(%x: !a {ifrt.donated}, %y: !a) -> !a attributes {ifrt.function} {
          return %x : !a
        }
      }
    """
    program = compiled(served, bytecode(text), devices=(0,))
    one = array(program.parameters[0], X)
    (result,) = program.execute([one, one])
    assert str(result.value) == "INVALID_ARGUMENT: program 'twice': argument 0 is donated and passed twice"
    assert not one.read()[1].is_deleted()
    # An argument that is a result is not consumed, even if it is declared as donated.
    (result,) = program.execute([one, array(program.parameters[1], Y)])
    np.testing.assert_array_equal(ENGINE.fetch(result), X)


def test_a_launch_that_fails_is_named_and_takes_its_results_alone(
    served: ServedDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "machine_memory", lambda: (1 << 60, "the machine has"))
    large = f"tensor<{1 << 17}x{1 << 18}xcomplex<f64>>"
    text = f"""
      !a = !ifrt.array<tensor<f32>, #ifrt.sharding_param< to [0] on 1>, [0]>
      !b = !ifrt.array<{large}, #ifrt.sharding_param<1x1 to [0] on 1>, [0]>
      !c = !ifrt.array<tensor<f32>, #ifrt.sharding_param< to [0] on 1>, [1]>
      module @step {{
        func.func public @main(%x: !a, %y: !c) -> (!b, !c) attributes {{ifrt.function}} {{
          %0, %c = ifrt.Call @fill::@main(%x) on devices [0] {{ifrt.mesh_name = "first"}} : (!a) -> !b
          %1, %d = ifrt.Call @double::@main(%y) on devices [1] {{ifrt.mesh_name = "second"}} : (!c) -> !c
          return %0, %1 : !b, !c
        }}
        module @double <sym_visibility = "private"> {{
          func.func @main(%x: tensor<f32>) -> tensor<f32> {{
            %0 = stablehlo.add %x, %x : tensor<f32>
            return %0 : tensor<f32>
          }}
        }}
        module @fill <sym_visibility = "private"> {{
          func.func @main(%x: tensor<f32>) -> {large} {{
            %0 = stablehlo.constant dense<(1.0, 0.0)> : {large}
            return %0 : {large}
          }}
        }}
      }}
    """
    program = compiled(served, bytecode(text), devices=(0, 1))
    lost, doubled = program.execute([array(spec, np.float32(1)) for spec in program.parameters])
    assert isinstance(lost.value, StatusError)
    assert lost.value.code == StatusCode.RESOURCE_EXHAUSTED
    assert lost.value.message.endswith("in program step, step fill on slice first")
    np.testing.assert_array_equal(ENGINE.fetch(doubled), np.float32(2))


FOREIGN_CALL = """
!a = !ifrt.array<tensor<4xf32>, #ifrt.sharding_param<1 to [0] on 1>, [0]>
module @step {
  func.func public @main(%x: !a) -> !a attributes {ifrt.function} {
    %0, %c = ifrt.Call @f::@main(%x) on devices [0] : (!a) -> !a
    return %0 : !a
  }
  module @f <sym_visibility = "private"> {
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = stablehlo.custom_call @their_code(%x) : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }
  }
}
"""


@pytest.mark.parametrize(
    ("program", "change", "message"),
    [
        (
            MESHES,
            {"devices": (4, 5)},
            "INVALID_ARGUMENT: no valid program in IFRT IR: 'func.func' op has an arr",
        ),
        (MESHES, {"devices": (4, 5, 99)}, "INVALID_ARGUMENT: no device has the id 99"),
        ("no program", {}, "INVALID_ARGUMENT: no valid program in IFRT IR: "),
        (MESHES, {"ifrt_version": "0.1.0"}, "UNIMPLEMENTED: versioned programs in IFRT IR are not supported"),
        (
            MESHES,
            {"options": {"mlir_dump_to": "/tmp"}},
            "PERMISSION_DENIED: the compiler options would have the",
        ),
        (
            FOREIGN_CALL,
            {},
            "UNIMPLEMENTED: the program calls 'their_code', which is not a call of JAX itself",
        ),
    ],
)
def test_refused_programs(served: ServedDevices, program: str, change: dict[str, Any], message: str) -> None:
    data = bytecode(program) if program.lstrip().startswith("!") else program.encode()
    with pytest.raises(StatusError) as raised:
        compiled(served, data, **change)
    assert str(raised.value).startswith(message)


def test_server_without_a_compiler_for_them() -> None:
    served = ServedDevices(LocalBackend(jax.devices("cpu")), MESSAGES)
    with pytest.raises(
        StatusError, match="UNIMPLEMENTED: programs in IFRT IR are not supported by the server"
    ):
        compiled(served, b"")


@pytest.fixture(scope="module")
def bundle() -> bytes:
    devices = pw.make_virtual_device_set()
    first, second = (devices.add_slice(shape=(n,), axis_names=("x",)) for n in (2, 1))
    double = pw.jit(lambda x: 2 * x, devices=first, in_shardings=P("x"), out_shardings=P("x"))
    add = pw.jit(lambda x, y: x + y, devices=second)
    lowered = pw.program(lambda x, y: (double(x), add(double(x), y)), donate_argnums=0).lower(X, Y)
    return packed(lowered._forms.scheduled, "step", lowered._interface, lowered._signature)


def test_program_of_a_bundle_on_two_slices(served: ServedDevices, bundle: bytes) -> None:
    program = compiled(served, bytecode_of(carrier_of(bundle)))
    first, second = program.execute(arguments(program))
    np.testing.assert_array_equal(first.read()[1], 2 * X)
    np.testing.assert_array_equal(second.read()[1], 2 * X + Y)
    assert program.donated == (0,)
    assert [[device.id for device in spec.placement.devices] for spec in program.results] == [[4, 5], [7]]


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ((4, 5), "its slices have other devices than the 2 of the request"),
        ((4, 5, 6, 7), "its slices have other devices than the 4 of the request"),
        ((4, 5, 99), "no device has the id 99"),
    ],
)
def test_bundle_on_other_devices(served: ServedDevices, bundle: bytes, devices, message) -> None:
    with pytest.raises(StatusError, match=message):
        compiled(served, bytecode_of(carrier_of(bundle)), devices)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_damaged_bundle_is_one_status(served: ServedDevices, bundle: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(bundle) - 1))
    piece = data.draw(st.binary(min_size=0, max_size=8))
    damaged = bundle[:start] + piece + bundle[start + data.draw(st.integers(0, 8)) :]
    assume(damaged != bundle)
    with pytest.raises(StatusError) as raised:
        compiled(served, bytecode_of(carrier_of(damaged)))
    assert raised.value.code == StatusCode.INVALID_ARGUMENT


def test_a_bundle_that_is_cut_off(served: ServedDevices, bundle: bytes) -> None:
    program = bytecode_of(carrier_of(bundle))
    for size in (20, len(program) // 2):
        start = program.index(b"pathways bundle ")
        with pytest.raises(StatusError, match="no valid program of Pathways"):
            compiled(served, program[: start + size])


def test_computations_of_a_bundle_are_checked_as_those_of_any_client(served: ServedDevices) -> None:
    stage = pw.make_virtual_device_set().add_slice(shape=(1,), axis_names=("x",))
    large = pw.jit(lambda x: jax.numpy.broadcast_to(x, (1 << 36,)).sum(), devices=stage)
    lowered = pw.program(large).lower(np.float32(1))
    bundle = packed(lowered._forms.scheduled, "large", lowered._interface, lowered._signature)
    with pytest.raises(StatusError, match="has a value of 68719476736 elements"):
        compiled(served, bytecode_of(carrier_of(bundle)), (3,))

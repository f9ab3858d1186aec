"""Programs that compile in separate processes: equal to this process's programs, and cancelled at once."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathways.runtime.proxy.loading import compile_process
from pathways.runtime.proxy.loading.compile_process import Cancellation, CompileProcesses
from pathways.runtime.xla import ifrt, pjrt

pytestmark = pytest.mark.process

DEVICES = tuple(jax.devices("cpu")[2:4])


@pytest.fixture(scope="module")
def processes() -> Iterator[CompileProcesses]:
    with contextlib.closing(CompileProcesses()) as processes:
        yield processes


@pytest.fixture
def every_program_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_process, "MIN_OPERATIONS", 1)


def lowered(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Returns the module of a function, in the form of the server's programs."""
    text = jax.jit(function, **options).lower(*arguments).as_text(debug_info=True)
    return pjrt.parse(text.encode())


def step() -> Any:
    """Returns a program on two devices that donates an operand and calls LAPACK."""
    rows = jax.NamedSharding(
        jax.make_mesh((2,), ("x",), (jax.sharding.AxisType.Auto,), devices=DEVICES), jax.P("x")
    )
    weights = jax.ShapeDtypeStruct((8, 8), np.float32, sharding=rows)

    def update(weights: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        gradient = jax.grad(lambda weights: jnp.tanh(inputs @ weights).sum())(weights)
        return weights - gradient, jnp.linalg.cholesky(jnp.eye(8) + inputs.T @ inputs)

    return lowered(update, weights, weights, donate_argnums=0)


def properties(executable: Any) -> dict[str, Any]:
    """Returns all that the server tells of an executable."""
    stats = pjrt.memory_stats(executable)
    return {
        # Loading code numbers its stack frames anew.
        "text": re.sub(r"stack_frame_id=\d+|^\d+ .*\n", "", executable.get_hlo_text(), flags=re.MULTILINE),
        "memory": [getattr(stats, name) for name in dir(stats) if name.endswith("_in_bytes")],
        "costs": executable.cost_analysis(),
        "donated": ifrt.donated_operands(executable),
        "shardings": [str(sharding) for sharding in executable.get_output_shardings()],
        "layouts": [str(layout) for layout in executable.get_parameter_layouts()],
        "kinds": executable.get_output_memory_kinds(),
        "code": executable.size_of_generated_code_in_bytes(),
    }


@pytest.mark.usefixtures("every_program_is_long")
def test_equals_a_program_of_this_process(processes: CompileProcesses) -> None:
    module, options = step(), pjrt.compile_options(DEVICES, 2, 2)
    code = processes.compile(module, DEVICES, options, Cancellation())
    assert code is not None
    apart = pjrt.deserialize(code, DEVICES, options)
    local = pjrt.compile_module(module, DEVICES, options)
    assert properties(apart) == properties(local)


@pytest.mark.usefixtures("every_program_is_long")
def test_errors_are_those_of_xla(processes: CompileProcesses) -> None:
    text = """func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
        %y = stablehlo.custom_call @unknown(%x) {api_version = 4 : i32} : (tensor<2xf32>) -> tensor<2xf32>
        return %y : tensor<2xf32>
    }"""
    module, options = pjrt.parse(text.encode()), pjrt.compile_options(DEVICES[:1], 1, 1)
    with pytest.raises(jax.errors.JaxRuntimeError) as local:
        pjrt.compile_module(module, DEVICES[:1], options)
    with pytest.raises(jax.errors.JaxRuntimeError) as apart:
        processes.compile(module, DEVICES[:1], options, Cancellation())
    assert str(apart.value) == str(local.value)


def test_short_programs_compile_in_this_process(processes: CompileProcesses) -> None:
    options = pjrt.compile_options(DEVICES, 2, 2)
    assert processes.compile(step(), DEVICES, options, Cancellation()) is None


def long_module() -> Any:
    """Returns a program that XLA compiles for many seconds."""
    lines = ["%0 = stablehlo.reverse %x, dims = [0] : tensor<64xf32>"]
    for number in range(30_000):
        lines.append(f"%{number + 1} = stablehlo.sine %{number} : tensor<64xf32>")
    lines.append("return %30000 : tensor<64xf32>")
    body = "\n".join(lines)
    return pjrt.parse(f"func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {{ {body} }}".encode())


def test_a_cancelled_program_ends_at_once_and_delays_no_other(processes: CompileProcesses) -> None:
    cancelled, other = Cancellation(), Cancellation()
    errors: list[str] = []
    options = pjrt.compile_options(DEVICES[:1], 1, 1)

    def compile_() -> None:
        try:
            processes.compile(long_module(), DEVICES[:1], options, cancelled)
        except jax.errors.JaxRuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=compile_)
    thread.start()
    deadline = time.monotonic() + 60
    while not processes._busy:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile_process, "MIN_OPERATIONS", 1)
        assert processes.compile(step(), DEVICES, pjrt.compile_options(DEVICES, 2, 2), other) is not None
    assert thread.is_alive()
    cancelled.request()
    thread.join(60)
    assert errors == ["CANCELLED: the compilation was cancelled"]
    assert not processes._busy


@pytest.mark.usefixtures("every_program_is_long")
def test_a_process_that_was_killed_is_replaced(processes: CompileProcesses) -> None:
    module, options = step(), pjrt.compile_options(DEVICES, 2, 2)
    assert processes.compile(module, DEVICES, options, Cancellation()) is not None
    (idle,) = processes._idle
    assert idle._running is not None
    idle.kill()
    idle._running[0].exit_code(60)
    assert processes.compile(module, DEVICES, options, Cancellation()) is not None

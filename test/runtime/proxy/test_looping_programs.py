"""Programs of Pathways with loops that end depending on values: run in the server."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
from session_client import MESSAGES

import pathways as pw
from pathways.compiler.lower.bundles import packed
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.runtime.bundle.carrier import carrier_of
from pathways.runtime.proxy.arrays.proxy_array import ProxyArray
from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.loading.compile_process import Cancellation
from pathways.runtime.proxy.loading.local_backend import LocalBackend
from pathways.runtime.proxy.loading.looping_program import LoopingProgram
from pathways.runtime.proxy.programs import compile_program
from pathways.runtime.proxy.serving.call_writer import CallWriter
from pathways.runtime.proxy.serving.calls import SessionCall
from pathways.runtime.proxy.serving.registry import SessionRegistry

FOREVER = np.int32(2**31 - 1)


def bundle_of(donate: tuple[int, ...] = ()) -> bytes:
    """Returns a program that adds its second argument to the first in a loop on two slices."""
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice(shape=(1,), axis_names=("x",)) for _ in range(2)]
    first, second = (pw.jit(lambda x, y: x + y, devices=slice) for slice in slices)

    def step(x: Any, y: Any, end: Any) -> Any:
        body = lambda s: (s[0] + 1, second(first(s[1], y), y))  # noqa: E731
        return *jax.lax.while_loop(lambda s: s[0] < end, body, (0, x)), y

    zeros = np.zeros(4, np.float32)
    lowered = pw.program(step, donate_argnums=donate, chunk=2).lower(zeros, zeros, np.int32(0))
    return packed(lowered._forms.scheduled, "step", lowered._interface, lowered._signature)


@pytest.fixture(scope="module")
def bundle() -> bytes:
    return bundle_of()


@pytest.fixture
def served() -> ServedDevices:
    return ServedDevices(LocalBackend(jax.devices("cpu"), 4), MESSAGES)


def request_of(bundle: bytes) -> dict[str, Any]:
    """Returns the fields of a request to compile a program for devices on the second and third slice."""
    proto = MESSAGES["xla.ifrt.IfrtIrProgramProto"](ifrt_program=bytecode_of(carrier_of(bundle)))
    options = MESSAGES["xla.ifrt.IfrtIrCompileOptionsProto"](device_ids=(2, 5))
    serialized = MESSAGES["xla.ifrt.Serialized"]
    return {
        "program": serialized(type_name="xla::ifrt::IfrtIRProgram", data=proto.SerializeToString()),
        "compile_options": serialized(
            type_name="xla::ifrt::IfrtIRCompileOptions", data=options.SerializeToString()
        ),
    }


def compiled(
    served: ServedDevices, bundle: bytes, cancellation: Cancellation | None = None
) -> LoopingProgram:
    request = request_of(bundle)
    program = compile_program(
        served, request["program"], request["compile_options"], cancellation=cancellation
    )
    assert isinstance(program, LoopingProgram)
    return program


def arguments_of(program: LoopingProgram, end: int) -> list[ProxyArray]:
    """Returns arguments on their slices: an argument that both slices read is two."""
    values = {0: np.arange(4, dtype=np.float32), 1: np.ones(4, np.float32), 2: np.int32(end)}
    return [
        ProxyArray(port.spec, jax.device_put(values[port.number], port.spec.placement.sharding))
        for port in program.interface.inputs
    ]


def positions_of(program: LoopingProgram, number: int) -> list[int]:
    """Returns the positions of the copies of an argument."""
    return [n for n, port in enumerate(program.interface.inputs) if port.number == number]


@pytest.mark.parametrize("end", [0, 1, 2, 7])
def test_a_loop_runs_to_its_end(served: ServedDevices, bundle: bytes, end: int) -> None:
    program = compiled(served, bundle)
    arguments = arguments_of(program, end)
    expected = {0: end, 1: np.arange(4) + 2 * end, 2: np.ones(4)}
    for port, result in zip(program.interface.outputs, program.execute(arguments), strict=True):
        np.testing.assert_array_equal(result.read()[1], expected[port.number])
    assert not any(argument.read()[1].is_deleted() for argument in arguments)


def test_donated_arguments_are_consumed_unless_they_are_kept(served: ServedDevices) -> None:
    program = compiled(served, bundle_of(donate=(0, 1)))
    x = positions_of(program, 0)
    assert set(x) <= set(program.donated)
    arguments = arguments_of(program, 3)
    results = program.execute(arguments)
    # The second one is donated, too, but is a result.
    deleted = [number for number, argument in enumerate(arguments) if argument.read()[1].is_deleted()]
    assert deleted == x
    arguments = arguments_of(program, 3)
    for ours, expected in zip(program.execute(arguments, undonated=program.donated), results, strict=True):
        np.testing.assert_array_equal(ours.read()[1], expected.read()[1])
    assert not any(argument.read()[1].is_deleted() for argument in arguments)


def test_results_share_no_buffers_with_arguments(served: ServedDevices, bundle: bytes) -> None:
    program = compiled(served, bundle)
    arguments = arguments_of(program, 0)
    for result in program.execute(arguments):
        result.read()[1].delete()
    assert not any(argument.read()[1].is_deleted() for argument in arguments)


def test_arguments_of_another_type_are_refused(served: ServedDevices, bundle: bytes) -> None:
    program = compiled(served, bundle)
    arguments = arguments_of(program, 1)
    (number,) = positions_of(program, 2)[:1]
    arguments[number] = arguments[positions_of(program, 0)[0]]
    (error, *_) = {str(result.value) for result in program.execute(arguments)}
    assert error.startswith(f"INVALID_ARGUMENT: program 'step': argument {number} is float32[4]")


def test_an_error_in_a_chunk_is_that_of_all_results(
    served: ServedDevices, bundle: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = compiled(served, bundle)
    chunk = program.sub_programs[program.executable.repeated]
    run, calls = chunk.run, []

    def fail(self: Any, *passed: Any) -> Any:
        calls.append(self)
        if self is chunk and calls.count(chunk) == 3:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
        return run.__func__(self, *passed)  # type: ignore[attr-defined]

    monkeypatch.setattr(type(chunk), "run", fail)
    results = program.execute(arguments_of(program, 100))
    assert {str(result.value) for result in results} == {"RESOURCE_EXHAUSTED: out of memory"}
    assert calls.count(chunk) == 3


def test_metadata_is_that_of_the_whole(served: ServedDevices, bundle: bytes) -> None:
    program = compiled(served, bundle)
    metadata = MESSAGES["xla.ifrt.proxy.LoadedExecutableMetadataResponse"]()
    program.describe(metadata)
    assert len(metadata.parameter_shardings.shardings) == len(program.interface.inputs)
    assert len(metadata.output_shardings.shardings) == len(program.results)
    stats = metadata.mpmd_compiled_memory_stats.compiled_memory_stats
    assert set(stats) == set(program.plans[program.executable.repeated].slices)
    assert all(stats[name].argument_size_in_bytes > 0 for name in stats)
    costs = MESSAGES["xla.ifrt.proxy.LoadedExecutableMpmdCostAnalysisResponse"]()
    program.describe_costs(costs)
    assert set(costs.attributes.attributes) == set(program.plans[program.executable.repeated].computations)


@contextlib.contextmanager
def running(program: LoopingProgram, end: int) -> Iterator[Callable[[], set[str]]]:
    """Executes a program in a thread; yields a function that waits for the end, and returns its errors."""
    results: list[ProxyArray] = []
    thread = threading.Thread(target=lambda: results.extend(program.execute(arguments_of(program, end))))
    thread.start()

    def errors() -> set[str]:
        thread.join(timeout=30)
        assert not thread.is_alive()
        return {str(result.value) for result in results}

    time.sleep(0.2)
    assert thread.is_alive()
    yield errors
    thread.join(timeout=30)


def test_an_endless_loop_ends_with_its_session(served: ServedDevices, bundle: bytes) -> None:
    cancellation = Cancellation()
    program = compiled(served, bundle, cancellation)
    with running(program, FOREVER) as errors:
        start = time.monotonic()
        cancellation.request()
        assert errors() == {"CANCELLED: program 'step': the session has ended"}
        assert time.monotonic() - start < 1
    # Calls that are in the queue of the session start nothing.
    assert {str(result.value) for result in program.execute(arguments_of(program, 0))} == errors()


def test_a_lost_slice_ends_a_loop(served: ServedDevices, bundle: bytes) -> None:
    program = compiled(served, bundle)
    with running(program, FOREVER) as errors:
        served.island_states = served.island_states.lose(0)
        time.sleep(0.1)
        served.island_states = served.island_states.lose(1, "it was unplugged")
        assert errors() == {"DATA_LOSS: island1 was lost: it was unplugged"}


def test_two_loops_run_at_the_same_time(served: ServedDevices, bundle: bytes) -> None:
    endless, other = (compiled(served, bundle, cancellation) for cancellation in (Cancellation(), None))
    with running(endless, FOREVER) as errors:
        for end in (3, 50):
            count, *_ = other.execute(arguments_of(other, end))
            assert np.asarray(count.read()[1]) == end
        served.island_states = served.island_states.lose(1)
        assert errors() == {"DATA_LOSS: island1 was lost"}


def test_a_loop_ends_at_the_step_deadline(
    served: ServedDevices, bundle: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.backend, "step_deadline", 0.2)
    results = compiled(served, bundle).execute(arguments_of(compiled(served, bundle), FOREVER))
    (error,) = {str(result.value) for result in results}
    assert "step_deadline is 0.2: it was ended after a chunk" in error


def test_a_sub_program_may_read_a_value_in_another_place(served: ServedDevices, bundle: bytes) -> None:
    """A program of a stranger is verified, but may pass values between any slices."""
    program = compiled(served, bundle)
    moved = [
        read
        for call in program._calls
        for read in (*call.operands, *call.repeated)
        if read.target is not None
    ]
    assert not moved
    first, *_ = program._calls
    read = first.operands[0]
    other = next(device for device in program.devices if device not in read.spec.placement.devices)
    elsewhere = ProxyArray(read.spec, jax.device_put(np.zeros(read.spec.shape, read.spec.dtype), other))
    value = program._value(read._replace(target=read.spec), {read.number: {read.slice: elsewhere.value}})
    assert value.devices() == set(read.spec.placement.devices)


class _Writer(CallWriter):
    """Writer that records when replies are sent."""

    def __init__(self) -> None:
        self.replies: list[Any] = []

    def reply(self, stream: Any, replies: Any, handled: int, count: int, watch: Any) -> None:
        self.replies += [MESSAGES.parse("xla.ifrt.proxy.IfrtResponse", reply) for reply in replies]

    def send(self, stream: Any, *messages: Any) -> None:
        self.reply(stream, messages, 0, 0, None)

    def finish(self, *_: Any) -> None:
        pass


def test_earlier_replies_do_not_wait_for_a_loop(served: ServedDevices, bundle: bytes) -> None:
    writer, registry = _Writer(), SessionRegistry(served)
    call = SessionCall(writer, 1, registry)
    (session,) = registry.sessions
    numbers = iter(range(1, 100))

    def send(**fields: Any) -> int:
        request = MESSAGES["xla.ifrt.proxy.IfrtRequest"](**fields)
        request.request_metadata.op_id = next(numbers)
        call.receive(request.SerializeToString())
        return request.request_metadata.op_id

    def wait_for(number: int) -> Any:
        deadline = time.monotonic() + 30
        while True:
            for reply in writer.replies:
                if reply.response_metadata.op_id == number:
                    return reply
            assert time.monotonic() < deadline
            time.sleep(0.01)

    handle = wait_for(send(compile_request=request_of(bundle))).compile_response.loaded_executable_handle
    program = session.state.programs[handle]
    assert isinstance(program, LoopingProgram)
    arguments = arguments_of(program, FOREVER)
    handles = [*range(1, len(arguments) + 1)]
    session.state.arrays.update(zip(handles, arguments, strict=True))
    # All are in the queue before the first one is handled.
    ready = [send(check_value_ready_request={"value_handles": [n]}) for n in handles]
    results = [*range(100, 100 + len(program.results))]
    execution = {"loaded_executable_handle": handle, "args_handles": handles, "result_array_handle": results}
    executed = send(loaded_executable_execute_request=execution)
    for number in ready:
        assert wait_for(number).response_metadata.status.code == 0
    time.sleep(0.1)
    assert executed not in [reply.response_metadata.op_id for reply in writer.replies]
    start = time.monotonic()
    call.end()
    while registry.sessions:
        assert time.monotonic() < start + 5
        time.sleep(0.01)
    assert time.monotonic() - start < 1

"""Limit of memory for arrays and programs of all sessions, and its account."""

from __future__ import annotations

from typing import Any

import hypothesis
import jax
import msgspec
import numpy as np
import pytest
from hypothesis import strategies
from session_client import MESSAGES, Client, compile_text, module, on_device, over_devices

from pathways.runtime.proxy.arrays.memory_account import MemoryAccount
from pathways.runtime.proxy.arrays.proxy_array import ProxyArray
from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.loading import local_backend
from pathways.runtime.proxy.loading.local_backend import LocalBackend
from pathways.runtime.proxy.sessions.state import SessionState
from pathways.runtime.resources.manager import ResourceError

FLOATS = 256
BYTES = 4 * FLOATS


def served(limit: int | None) -> ServedDevices:
    return ServedDevices(LocalBackend(jax.devices("cpu")), MESSAGES, max_memory=limit)


def held_by(*clients: Client) -> tuple[int, bool]:
    """Returns the bytes of all buffers that arrays of sessions have, each counted once.

    Also returns whether these are all: the other shards of an array with a deleted one are unknown.
    """
    buffers = {}
    is_complete = True
    for client in clients:
        for array in client.session.state.arrays.values():
            if isinstance(array.value, jax.Array) and not array.value.is_deleted():
                for shard in client.session.state.served.engine.shards_of(array):
                    if shard.is_deleted():
                        continue
                    buffers[next(iter(shard.devices())), shard.unsafe_buffer_pointer()] = shard.nbytes
            elif isinstance(array.value, jax.Array):
                is_complete &= not any(allocation.size for allocation in array.memory)
    return sum(buffers.values()), is_complete


def put(client: Client, handle: int, device: int = 0) -> None:
    client.put(handle, np.zeros(FLOATS, np.float32), device)


def test_an_array_over_the_limit_holds_an_error() -> None:
    devices = served(2 * BYTES)
    one, other = Client(devices), Client(devices)
    put(one, 1)
    put(other, 1)
    put(other, 2)
    code, message = other.fetch(2)
    assert code == 8
    assert message == (
        f"out of memory: {BYTES} bytes are needed, and {2 * BYTES} of the server's {2 * BYTES} are in use; "
        "free arrays, or start the server with a larger --max-memory"
    )
    # Any way to free some makes room.
    one.request("destruct_array", array_handle=[1])
    put(other, 3)
    other.request("delete_array", array_handle=[3])
    put(other, 4)
    other.request("copy_arrays", array_handles=[4], device_ids=[1], result_handles=[5])
    assert other.fetch(5)[0] == 8
    other.session.close()
    assert devices.memory.used == 0


def test_results_and_temporary_values_of_an_execution_have_to_fit() -> None:
    devices = served(20 * BYTES)
    client = Client(devices)
    big = f"tensor<{100 * FLOATS}xf32>"
    for body, code in (
        (f"%0 = stablehlo.broadcast_in_dim %x, dims = [] : (tensor<f32>) -> {big} return %0 : {big}", 8),
        ("%0 = stablehlo.sine %x : tensor<f32> return %0 : tensor<f32>", 0),
    ):
        text = module(body).replace("-> tensor<f32> {", f"-> {big} {{") if code else module(body)
        assert compile_text(client, text).code == 0
        program = client.replies[-1].compile_response.loaded_executable_handle
        client.put(1, np.array(3, np.float32))
        client.request(
            "loaded_executable_execute",
            loaded_executable_handle=program,
            args_handles=[1],
            result_array_handle=[2],
        )
        reply = client.request("check_value_ready", value_handles=[2])
        assert reply.response_metadata.status.code == code
    client.session.close()


def test_the_code_of_programs_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPU, XLA reports no bytes of code."""
    facts_of = local_backend.facts_of
    monkeypatch.setattr(
        local_backend,
        "facts_of",
        lambda executable: msgspec.structs.replace(facts_of(executable), code_bytes=300),
    )
    devices = served(500)
    client = Client(devices)
    assert compile_text(client, module("return %x : tensor<f32>")).code == 0
    assert devices.memory.used == 300
    assert compile_text(client, module("return %x : tensor<f32>")).code == 8
    program = client.replies[-2].compile_response.loaded_executable_handle
    client.request("loaded_executable_destruct", loaded_executable_handle=program)
    assert devices.memory.used == 0
    client.session.close()


def test_without_a_limit_there_is_no_account() -> None:
    devices = served(None)
    client = Client(devices)
    put(client, 1)
    assert client.session.state.arrays[1].memory == ()
    assert devices.memory.used == 0
    client.session.close()


def test_an_error_in_place_of_an_array_holds_no_other_array() -> None:
    """A traceback would keep the arguments of failed functions alive."""
    devices = served(4 * BYTES)
    client = Client(devices)
    put(client, 1)
    reshard = {"array_handles": [1], "array_specs": [{"shape": {"dims": [3]}, "sharding": on_device(1)}]}
    client.request("reshard_arrays", **reshard, result_handles=[2])
    client.request("copy_arrays", array_handles=[2], device_ids=[1], result_handles=[3])
    client.request("destruct_array", array_handle=[1])
    assert client.session.counts[0] == 2
    assert devices.memory.used == 0
    client.session.close()


def test_an_array_resharded_to_its_own_sharding_has_new_buffers() -> None:
    client = Client(served(4 * BYTES))
    put(client, 1)
    spec = {"dtype": {"kind": "KIND_F32"}, "shape": {"dims": [FLOATS]}, "sharding": on_device(0)}
    client.request("reshard_arrays", array_handles=[1], array_specs=[spec], result_handles=[2])
    client.request("delete_array", array_handle=[1])
    assert np.array_equal(client.fetch(2), np.zeros(FLOATS))
    client.session.close()


def test_an_account_frees_each_allocation_once() -> None:
    account = MemoryAccount(10)
    allocations = account.reserve([4, 6])
    with pytest.raises(ResourceError, match="out of memory: 1 bytes are needed"):
        account.reserve([1])
    allocations[0].free()
    allocations[0].free()
    assert account.used == 6
    del allocations
    assert account.used == 0


DONATING = (
    f"module @test {{ func.func public @main(%x: tensor<{FLOATS}xf32> {{tf.aliasing_output = 0 : i32}}) "
    f"-> tensor<{FLOATS}xf32> {{ %0 = stablehlo.sine %x : tensor<{FLOATS}xf32> "
    f"return %0 : tensor<{FLOATS}xf32> }} }}"
)


@pytest.mark.parametrize(("donates", "limit"), [(True, 1), (False, 2)])
def test_memory_of_an_execution_passes_to_its_results(
    monkeypatch: pytest.MonkeyPatch, donates: bool, limit: int
) -> None:
    """Bytes that an execution consumes, or reserves when it starts, are never free for another session."""
    devices = served(limit * BYTES)
    one, other = Client(devices), Client(devices)
    assert compile_text(one, DONATING).code == 0
    program = one.replies[-1].compile_response.loaded_executable_handle
    put(one, 1)
    admit = SessionState.admit

    def admit_after_another_session(state: SessionState, array: ProxyArray) -> ProxyArray:
        if state is one.session.state:
            put(other, 1)
        return admit(state, array)

    monkeypatch.setattr(SessionState, "admit", admit_after_another_session)
    one.request(
        "loaded_executable_execute",
        loaded_executable_handle=program,
        args_handles=[1],
        result_array_handle=[2],
        execute_options={"non_donatable_input_indices": [] if donates else [0]},
    )
    assert np.array_equal(one.fetch(2), np.zeros(FLOATS))
    assert other.fetch(1)[0] == 8
    assert devices.memory.used == limit * BYTES
    one.session.close()
    assert devices.memory.used == 0


def test_an_execution_that_fails_returns_what_it_reserved() -> None:
    devices = served(2 * BYTES)
    client = Client(devices)
    assert compile_text(client, DONATING).code == 0
    program = client.replies[-1].compile_response.loaded_executable_handle
    put(client, 1)
    for arguments in ([], [99]):
        client.request(
            "loaded_executable_execute",
            loaded_executable_handle=program,
            args_handles=arguments,
            result_array_handle=[2],
        )
        assert client.fetch(2)[0] == 3
        assert devices.memory.used == BYTES
    client.session.close()


OPERATIONS = (
    "put",
    "copy",
    "donate",
    "assemble",
    "disassemble",
    "remap",
    "reshard",
    "execute",
    "delete",
    "destruct",
)


def devices_of(client: Client, handle: int) -> list[int]:
    """Returns the ids of the devices of an array; none of one that failed early."""
    spec = client.session.state.arrays[handle].spec
    return [device.id for device in spec.placement.devices] if spec else []


def act(client: Client, program: int, operation: str, handle: int, old: int) -> None:
    """Sends a request that creates arrays from an old one, which may be deleted or not fit."""
    known = client.session.state.arrays
    old = sorted(known)[old % len(known)] if known else 0
    count = len(devices_of(client, old)) if known else 1
    device = handle % 2
    spec = {"dtype": {"kind": "KIND_F32"}, "shape": {"dims": [FLOATS]}, "sharding": on_device(device)}

    def first_on(device: int) -> int:
        """Returns an array of a device, the old one if possible."""
        placed = ([old] if known else []) + list(known)
        return next((one for one in placed if devices_of(client, one) == [device]), 0)

    requests: dict[str, tuple[str, dict[str, Any]]] = {
        "copy": ("copy_arrays", {"array_handles": [old], "device_ids": [device], "result_handles": [handle]}),
        "donate": (
            "copy_arrays",
            {
                "array_handles": [old],
                "device_ids": [device],
                "result_handles": [handle],
                "copy_semantics": "ARRAY_COPY_SEMANTICS_DONATE_INPUT",
            },
        ),
        "assemble": (
            "assemble_array_from_single_device_arrays",
            {
                "shape": {"dims": [2 * FLOATS]},
                "sharding": over_devices([FLOATS], 2),
                "single_device_array_handles": [first_on(0), first_on(1)],
                "result_handle": handle,
            },
        ),
        "disassemble": (
            "disassemble_into_single_device_arrays",
            {"array_handle": old, "result_handles": [handle + 100 * shard for shard in range(count)]},
        ),
        "remap": (
            "remap_arrays",
            {
                "plan": {
                    "output_specs": [spec],
                    "mappings": [
                        {
                            "in_array": 0,
                            "out_array": 0,
                            "from_start": [0],
                            "from_end": [1],
                            "from_step": [1],
                            "to_start": [0],
                            "to_end": [1],
                            "to_step": [1],
                        }
                    ],
                },
                "array_handles": [old],
                "result_handles": [handle],
            },
        ),
        "reshard": (
            "reshard_arrays",
            {"array_handles": [old], "array_specs": [spec], "result_handles": [handle]},
        ),
        "execute": (
            "loaded_executable_execute",
            {
                "loaded_executable_handle": program,
                "args_handles": [old],
                "result_array_handle": [handle],
                "execute_options": {"non_donatable_input_indices": [0] if handle % 3 == 0 else []},
            },
        ),
        "delete": ("delete_array", {"array_handle": [old]}),
        "destruct": ("destruct_array", {"array_handle": [old]}),
    }
    if operation == "put":
        put(client, handle, device)
    else:
        kind, fields = requests[operation]
        client.request(kind, **fields)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    operations=strategies.lists(
        strategies.tuples(
            strategies.integers(0, 1), strategies.sampled_from(OPERATIONS), strategies.integers(1, 30)
        ),
        max_size=30,
    )
)
def test_the_account_equals_bytes_of_buffers_and_is_zero_after_sessions(
    operations: list[tuple[int, str, int]],
) -> None:
    devices = served(8 * BYTES)
    clients = [Client(devices), Client(devices)]
    compiled = []
    for client in clients:
        compile_text(client, DONATING)
        compiled.append(client.replies[-1].compile_response.loaded_executable_handle)
    for number, (index, operation, old) in enumerate(operations, start=1):
        act(clients[index], compiled[index], operation, number, old)
        held, is_complete = held_by(*clients)
        assert held <= devices.memory.used <= 8 * BYTES
        assert held == devices.memory.used or not is_complete
    for client in clients:
        client.session.close()
    assert devices.memory.used == 0

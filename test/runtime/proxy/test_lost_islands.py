"""Slices that are lost and return, and the arrays on them and on others."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies
from proxy_client import SocketClient
from session_client import MESSAGES, Client, compile_text, module, on_device, over_devices
from test_serving import make_array, start_session, wait_until

from pathways.runtime.proxy.arrays.island_states import IslandStates
from pathways.runtime.proxy.arrays.proxy_array import ProxyArray
from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.loading.local_backend import LocalBackend
from pathways.runtime.proxy.serving.server import ProxyServer
from pathways.runtime.proxy.sessions.session import ProxySession

LOST = (15, "island1 was lost")
"""Status of values that are lost with island1, which devices 4 to 7 form."""


@pytest.fixture
def served() -> ServedDevices:
    """Returns eight devices in two islands."""
    return ServedDevices(LocalBackend(jax.devices("cpu"), 2), MESSAGES)


@pytest.fixture
def client(served: ServedDevices) -> Iterator[Client]:
    client = Client(served)
    yield client
    client.session.close()
    assert client.session.counts == (0, 0, 0, 0)


def lose(served: ServedDevices, index: int = 1) -> None:
    served.island_states = served.island_states.lose(index)


def restore(served: ServedDevices, index: int = 1) -> None:
    served.island_states = served.island_states.restore(index)


def fetch(client: Client, handle: int) -> list[float] | tuple[int, str]:
    """Returns the elements of an array, or the status of the reply."""
    value = client.fetch(handle)
    return value.tolist() if isinstance(value, np.ndarray) else value


def test_arrays_on_a_lost_island_stay_lost_and_others_live(client: Client, served: ServedDevices) -> None:
    client.put(1, np.ones(2, np.float32), device=0)
    client.put(2, np.ones(2, np.float32), device=4)
    lose(served)
    client.put(3, np.ones(2, np.float32), device=7)
    assert [fetch(client, handle) for handle in (1, 2, 3)] == [[1, 1], LOST, LOST]
    restore(served)
    client.put(4, np.ones(2, np.float32), device=4)
    assert [fetch(client, handle) for handle in (1, 2, 3, 4)] == [[1, 1], LOST, LOST, [1, 1]]


def test_a_loss_that_a_session_sleeps_through(client: Client, served: ServedDevices) -> None:
    client.put(1, np.ones(2, np.float32), device=4)
    lose(served)
    restore(served)
    assert fetch(client, 1) == LOST


def test_an_array_over_both_islands(client: Client, served: ServedDevices) -> None:
    for device in range(8):
        client.put(device + 1, np.full(2, device, np.float32), device=device)
    client.request(
        "assemble_array_from_single_device_arrays",
        shape={"dims": [16]},
        sharding=over_devices([2], 8),
        single_device_array_handles=range(1, 9),
        result_handle=10,
    )
    client.request("disassemble_into_single_device_arrays", array_handle=10, result_handles=range(11, 19))
    lose(served)
    # Shards that were separated before are arrays themselves.
    assert fetch(client, 12) == [1, 1]
    assert fetch(client, 18) == LOST
    client.request("disassemble_into_single_device_arrays", array_handle=10, result_handles=range(21, 29))
    assert [fetch(client, handle) for handle in (10, 21, 28)] == [LOST] * 3


@pytest.mark.parametrize("value", [0, 4])
def test_copies_from_and_to_a_lost_island(client: Client, served: ServedDevices, value: int) -> None:
    client.put(1, np.ones(2, np.float32), device=value)
    lose(served)
    client.request("copy_arrays", array_handles=[1], device_ids=[4 - value], result_handles=[2])
    assert fetch(client, 2) == LOST
    spec = {"dtype": {"kind": "KIND_F32"}, "shape": {"dims": [2]}, "sharding": on_device(4 - value)}
    client.request("reshard_arrays", array_handles=[1], array_specs=[spec], result_handles=[3])
    assert fetch(client, 3) == LOST


@pytest.mark.parametrize("before", [True, False], ids=["compiled before", "compiled after"])
def test_executions_on_a_lost_island(client: Client, served: ServedDevices, before: bool) -> None:
    """Compilations succeed: an elastic trainer compiles to find the slices that are connected."""
    programs = {}

    def compile_() -> None:
        for device in (0, 4):
            text = module("%0 = stablehlo.add %x, %x : tensor<f32> return %0 : tensor<f32>")
            assert compile_text(client, text, device).code == 0
            programs[device] = client.replies[-1].compile_response.loaded_executable_handle

    if before:
        compile_()
    lose(served)
    if not before:
        compile_()
    for device, program in programs.items():
        client.put(device + 1, np.array(3, np.float32), device=device)
        reply = client.request(
            "loaded_executable_execute",
            loaded_executable_handle=program,
            args_handles=[device + 1],
            result_array_handle=[device + 10],
            execute_options={"fill_status": True},
            result_status_handle=device + 20,
        )
        assert reply.response_metadata.status.code == 0
    assert [fetch(client, handle) for handle in (10, 14)] == [[6], LOST]
    for status, code in ((20, 0), (24, 15)):
        reply = client.request("loaded_executable_fetch_execute_result", result_status_handle=status)
        assert reply.response_metadata.status.code == code
    restore(served)
    client.put(5, np.array(3, np.float32), device=4)
    client.request(
        "loaded_executable_execute",
        loaded_executable_handle=programs[4],
        args_handles=[5],
        result_array_handle=[30],
    )
    assert fetch(client, 30) == [6]


@pytest.mark.parametrize("device", [0, 4])
def test_a_request_that_waits_for_an_island_that_is_lost_is_replied_to_at_once(
    served: ServedDevices, device: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(served)
    held: list[Callable[[], None]] = []
    client.session = ProxySession(7, served, client._read, held.append)
    client.put(1, np.ones(2, np.float32), device=device)
    monkeypatch.setattr(ProxyArray, "is_ready", False)
    request = MESSAGES["xla.ifrt.proxy.IfrtRequest"](
        request_metadata={"op_id": 50},
        copy_to_host_buffer_request={"array_handle": 1, "host_buffer_handle": 9},
    )
    assert client.session.dispatch(request.SerializeToString()) is None
    lose(served)
    client.session.handle_loss()
    codes = [15] if device == 4 else []
    assert [reply.response_metadata.status.code for reply in client.replies[1:]] == codes
    # When the array gets ready, requests that have a reply already get no other one.
    held.pop()()
    codes = codes or [0]
    assert [reply.response_metadata.status.code for reply in client.replies[1:]] == codes
    assert len(client.session.host_buffers) == (device == 0)
    client.session.close()


@hypothesis.settings(max_examples=40, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(
    events=strategies.lists(
        strategies.tuples(strategies.sampled_from(["put", "lose", "restore"]), strategies.integers(0, 3)),
        max_size=20,
    )
)
def test_an_array_lives_until_its_island_is_lost(events: list[tuple[str, int]]) -> None:
    served = ServedDevices(LocalBackend(jax.devices("cpu"), 4), MESSAGES)
    client = Client(served)
    lives: dict[int, bool] = {}
    islands: dict[int, int] = {}
    lost: set[int] = set()
    for handle, (event, index) in enumerate(events, start=1):
        if event == "put":
            client.put(handle, np.ones(1, np.float32), device=2 * index)
            islands[handle] = index
            lives[handle] = index not in lost
        elif event == "lose" and index not in lost:
            lose(served, index)
            lost.add(index)
            lives |= {array: False for array, on in islands.items() if on == index}
        elif event == "restore" and index in lost:
            restore(served, index)
            lost.remove(index)
    for handle, is_alive in lives.items():
        assert fetch(client, handle) == ([1] if is_alive else (15, f"island{islands[handle]} was lost"))
    client.session.close()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda states: states.lose(2), "island 2 does not exist: the islands are 0 to 1"),
        (lambda states: states.restore(-1), "island -1 does not exist: the islands are 0 to 1"),
        (lambda states: states.lose(1), "island1 is lost already"),
        (lambda states: states.restore(0), "island0 is not lost"),
    ],
)
def test_changes_that_are_not_possible(change: Callable[[IslandStates], Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        change(IslandStates.of(["island0", "island1"]).lose(1))


def test_a_server_loses_and_returns_islands(served: ServedDevices, tmp_path: Path) -> None:
    with ProxyServer(tmp_path / "socket", served) as server:
        server.lose_island(0)
        assert served.island_states.lost == {0}
        server.return_island(0)
        assert served.island_states.lost == set()


def test_a_loss_frees_the_arrays_of_a_session_that_is_idle(served: ServedDevices, tmp_path: Path) -> None:
    with ProxyServer(tmp_path / "socket", served) as server:
        client = SocketClient(server.path)
        stream, number = start_session(client)
        session = server.registry.session(number)
        for handle, device in ((1, 0), (2, 4)):
            session.host_buffers.store(handle, bytes(8))
            client.send(stream, make_array(handle, 8, device))
            client.wait_for_message(stream)
        lives, lost = (weakref.ref(session.state.arrays[handle].value) for handle in (1, 2))
        server.lose_island(1)
        wait_until(lambda: lost() is None)
        assert lives() is not None
        client.close()

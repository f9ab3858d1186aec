"""Quotas of memory, the pool, and suspension, for clients of a service with real workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attached import ServiceInThreads

import pathways as pw
from pathways.runtime.hosts.launch.settings import Island, Settings
from pathways.runtime.service.protocol.admin import ChangeRequest
from pathways.runtime.service.sharing.memory import DeviceLimits
from pathways.runtime.service.sharing.rules import ClientRules, SharingRules

pytestmark = pytest.mark.hosts

MIB = 1 << 20
RULES = SharingRules(
    clients={"ann": ClientRules(memory=4 * MIB), "*": ClientRules(memory=2 * MIB)},
    max_clients=1,
    islands=(DeviceLimits(16 * MIB, 4 * MIB),),
)
X = np.arange(MIB // 4, dtype=np.float32)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceInThreads]:
    """Starts a service with an island of two devices of 16 MiB."""
    pw.disconnect()
    settings = Settings((Island(devices_per_host=2),))
    served = ServiceInThreads(settings, tmp_path_factory.mktemp("service"), RULES)
    yield served
    served.close()


@pytest.fixture
def ann(service: ServiceInThreads) -> Iterator[None]:
    """Attaches this process as a client that may hold 4 MiB."""
    with service.attached("ann", hosts=1):
        yield


def on_one_device(function: Callable[..., Any]) -> Callable[..., Any]:
    stage = pw.make_virtual_device_set().add_slice((1,), ("x",))
    return pw.program(pw.jit(function, devices=stage))


def test_a_step_above_the_quota_fails_and_the_client_goes_on(service: ServiceInThreads, ann: None) -> None:
    step = on_one_device(lambda x: x + 1)
    kept = [step(X) for _ in range(3)]
    jax.block_until_ready(kept)
    # The argument is the fourth array.
    with pytest.raises(pw.ResourceError) as caught:
        jax.block_until_ready(step(X))
    first, heads, row = str(caught.value).splitlines()
    assert "exceeds the quota of client 'ann' on a device of island0: free arrays" in first
    assert heads.split() == ["client", "quota", "held", "made", "largest", "arrays"]
    assert " ".join(row.split()) == "ann 4 MiB 4 MiB 1 MiB 1 MiB, 1 MiB, 1 MiB"
    for array in kept:
        np.testing.assert_array_equal(np.asarray(array), X + 1)
    (island,) = service.service.status().islands
    # Of the 16 MiB of a device. Freed arrays are freed on hosts with the next step.
    assert island.free_memory is not None
    assert 12 * MIB < island.free_memory < 16 * MIB
    del kept, array
    np.testing.assert_array_equal(np.asarray(step(X)), X + 1)


def test_a_step_that_reads_a_result_above_the_quota_fails_likewise(ann: None) -> None:
    step = on_one_device(lambda x: x + 1)
    kept = [step(X) for _ in range(3)]
    with pytest.raises(pw.ResourceError, match="quota"):
        jax.block_until_ready(step(step(X)))
    jax.block_until_ready(kept)


def test_arrays_that_only_cycles_refer_to_are_collected_first(ann: None) -> None:
    step = on_one_device(lambda x: x + 1)
    for _ in range(12):
        holder: list[Any] = []
        holder += [holder, step(X)]
        jax.block_until_ready(holder[1])
        del holder


def test_a_step_waits_for_memory_that_steps_in_flight_free(ann: None) -> None:
    step = on_one_device(lambda x: x + 1)
    x = step(X)
    for _ in range(50):
        x = step(x)
    np.testing.assert_array_equal(np.asarray(x), X + 51)


def test_an_array_above_the_quota_is_an_error_of_its_readers(ann: None) -> None:
    step = on_one_device(lambda x: x.sum())
    kept = [step.place(X + number)[0] for number in range(4)]
    with pytest.raises(pw.ResourceError, match="an array that it sends exceeds the quota of client 'ann'"):
        jax.block_until_ready(step(step.place(X)[0]))
    with pytest.raises(pw.HostError, match="an array that it sends exceeds the quota"):
        np.asarray(step.place(X)[0])
    plain = jax.jit(lambda x: x.sum())
    del kept[1:]
    assert [float(step(array)) for array in kept] == [float(plain(X))]


def test_a_program_that_never_fits_is_refused_before_it_runs(ann: None) -> None:
    large = on_one_device(lambda x: jnp.broadcast_to(x, (5, *x.shape)))
    with pytest.raises(pw.ResourceError, match=r"needs 5 MiB for results on .* quota of client 'ann', 4 MiB"):
        large(X)
    sort = on_one_device(lambda x: jnp.sort(jnp.outer(x[:1500], x[:1500]).ravel())[0])
    with pytest.raises(pw.ResourceError, match="for temporaries on a device of island0, more than the pool"):
        sort(X)


def test_clients_without_a_name_in_the_file_have_a_limit(service: ServiceInThreads) -> None:
    bo = service.attach("bo")
    with pytest.raises(pw.HostError, match="accepts 1 clients that its file does not name"):
        service.attach("cy")
    service.attach("ann").close()
    bo.close()


def test_a_suspended_client_keeps_its_arrays_and_goes_on_when_it_is_resumed(
    service: ServiceInThreads, ann: None
) -> None:
    step = on_one_device(lambda x: x + 1)
    x = jax.block_until_ready(step(X))
    assert service.service.change_client(ChangeRequest("ann", is_suspended=True)) is None
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(np.asarray(step(x))))
    thread.start()
    time.sleep(0.3)
    (client,) = service.service.status().clients
    assert (client.is_suspended, client.queued, results) == (True, 1, [])
    assert service.service.change_client(ChangeRequest("ann", is_suspended=False)) is None
    thread.join(30)
    np.testing.assert_array_equal(results[0], X + 2)


def test_rules_change_while_a_client_is_attached(service: ServiceInThreads, ann: None) -> None:
    step = on_one_device(lambda x: x + 1)
    kept = [step(X) for _ in range(3)]
    jax.block_until_ready(kept)
    change = ChangeRequest("ann", weight=3.0, priority=2, memory=6 * MIB)
    assert service.service.change_client(change) is None
    kept += [step(X), step(X)]
    jax.block_until_ready(kept)
    (client,) = service.service.status().clients
    assert (client.weight, client.priority, client.quota) == (3.0, 2, 6 * MIB)
    why = service.service.change_client(ChangeRequest("ann", memory=11 * MIB))
    assert why is not None
    assert why.startswith("the quotas of clients are 13 MiB together, more than the 16 MiB of a device")
    assert service.service.change_client(ChangeRequest("dee", weight=2.0)) == (
        "no client 'dee' is connected, and the file of the cluster names none"
    )
    assert service.service.change_client(ChangeRequest("ann", memory=4 * MIB)) is None

"""Accounts of clients of a service with real workers, and of a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import host_functions
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attached import ServiceInThreads

import pathways as pw
from pathways.runtime.hosts.launch.settings import Island, Settings
from pathways.runtime.resources.accounts import AccountRecord

pytestmark = pytest.mark.hosts

X = np.arange(1024, dtype=np.float32)
BYTES = X.nbytes


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceInThreads]:
    """Starts a service with two islands."""
    pw.disconnect()
    served = ServiceInThreads(Settings((Island(),) * 2), tmp_path_factory.mktemp("service"))
    yield served
    served.close()


def accounts_of(service: ServiceInThreads, client: str) -> dict[tuple[str, str], AccountRecord]:
    """Returns the accounts of a client, by programs and islands."""
    records = service.service.accounts()
    assert records is not None
    return {(each.program, each.island): each for each in records if each.client == client}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_accounts_of_a_pipeline_say_what_it_made_moved_and_holds(service: ServiceInThreads) -> None:
    with service.attached("ann", hosts=2):
        devices = pw.make_virtual_device_set()
        first, second = (pw.jit(jnp.sin, devices=devices.add_slice((1,), ("x",))) for _ in range(2))

        @pw.program
        def train(x: jax.Array) -> jax.Array:
            return second(first(x))

        kept = [train(X) for _ in range(3)]
        np.testing.assert_allclose(np.asarray(kept[-1]), np.sin(np.sin(X)), rtol=1e-6)
        wait_until(lambda: accounts_of(service, "ann")["train", "island1"].use.steps == 3)
        accounts = accounts_of(service, "ann")
        received, sent = accounts["train", "island1"], accounts["train", "island0"]
        assert sent.use.steps == 3
        assert received.use.device_seconds > 0
        assert (received.use.result_bytes, sent.use.result_bytes) == (3 * BYTES, 0)
        assert (received.held_bytes, sent.held_bytes) == (3 * BYTES, 0)
        # Each step sends its value on.
        assert (received.use.moved_bytes, sent.use.moved_bytes) == (3 * BYTES, 0)
        inputs, fetched = accounts["", "island0"], accounts["", "island1"]
        assert (inputs.use.moved_bytes, fetched.use.moved_bytes) == (3 * BYTES, BYTES)
        del kept[1:]
        jax.block_until_ready(train(X))
        wait_until(lambda: accounts_of(service, "ann")["train", "island1"].held_bytes <= 2 * BYTES)
    wait_until(lambda: not service.service.status().clients)
    left = accounts_of(service, "ann")["train", "island1"]
    assert (left.use.steps, left.held_bytes) == (4, 0)
    assert left.peak_bytes >= 3 * BYTES


def test_failed_steps_are_in_the_accounts(service: ServiceInThreads) -> None:
    with service.attached("bob", hosts=2):
        stage = pw.make_virtual_device_set().add_slice((1,), ("x",))
        sort = pw.jit(lambda x: jnp.sort(jnp.sin(jax.lax.iota(jnp.float32, 1 << 44) * x))[:3], devices=stage)

        @pw.program
        def fails(x: jax.Array) -> jax.Array:
            return sort(x)

        # Otherwise it is refused when it is loaded.
        assume_memory = pw.on_hosts(host_functions.assume_memory, devices=stage)
        assume_memory(size=1 << 60).result()
        try:
            result = fails(np.float32(1))
        finally:
            assume_memory(size=None).result()
        with pytest.raises(pw.HostError, match="Out of memory"):
            jax.block_until_ready(result)
        accounts = accounts_of(service, "bob")
        (account,) = [each for (name, _), each in accounts.items() if name == "fails"]
        assert (account.use.steps, account.use.failures, account.use.result_bytes) == (1, 1, 0)
        (calls,) = [each for (name, _), each in accounts.items() if "assume_memory" in name]
        assert calls.use.steps == 2

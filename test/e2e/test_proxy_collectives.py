"""Clients of the proxy whose programs have collectives on the same devices, several calls ahead."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax
import pytest
from test_proxy import start_client

import pathways.proxy
from pathways.proxy import ProxyServer

pytestmark = [pytest.mark.process, pytest.mark.slow]

PROGRAM = """if True:
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    def make_step(devices):
        count = len(devices)
        mesh = Mesh(np.array(devices), ("x",))

        @jax.jit
        @jax.shard_map(mesh=mesh, in_specs=P("x"), out_specs=P("x"))
        def step(x):
            moved = jax.lax.ppermute(x, "x", [(i, (i + 1) % count) for i in range(count)])
            return moved + 0 * jax.lax.psum(x, "x")

        return step, NamedSharding(mesh, P("x"))

    (step, here), (other_step, there) = map(make_step, (jax.devices()[{here}], jax.devices()[{there}]))
    start = np.arange(8 * {width}, dtype=np.float32).reshape(8, {width})
    x = jax.device_put(start, here)
    other_step(jax.device_put(step(x), there)).block_until_ready()
    print("ready", flush=True)
    input()
    for _ in range(400):
        x = jax.device_put(other_step(jax.device_put(step(x), there)), here)
    print(np.array_equal(np.sort(np.ravel(x)), np.ravel(start)))
"""
"""Script that moves rows from device to device, and from mesh to mesh, without waiting between calls."""


@pytest.fixture
def server() -> Iterator[ProxyServer]:
    with pathways.proxy.serve(devices=jax.devices("cpu")) as server:
        yield server


def test_collectives_of_several_clients_never_wait_for_each_other(server: ProxyServer) -> None:
    programs = [
        PROGRAM.format(here=here, there=there, width=width)
        for here, there, width in (
            (":4", "4:", 4),
            ("4:", ":4", 4),
            ("2:6", "::2", 64),
            ("::2", "1::2", 4),
            ("::-2", "::2", 256),
            ("::", "2:4", 4),
        )
    ]
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(start_client(server, program)) for program in programs]
        for client in clients:
            stack.callback(client.kill)
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n"
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("\n")
            client.stdin.flush()
        for client in clients:
            out, err = client.communicate(timeout=120)
            assert out == "True\n", err[-2000:]

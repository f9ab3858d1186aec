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

    devices = jax.devices()[{devices}]
    count = len(devices)
    mesh = Mesh(np.array(devices), ("x",))

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    def step(x):
        total = jax.lax.psum(x, "x")
        slow = sum(total @ jnp.ones(({width}, {width})) for _ in range(4))
        return jax.lax.ppermute(x, "x", [(i, (i + 1) % count) for i in range(count)]) + 0 * slow

    start = np.arange(count * {width}, dtype=np.float32).reshape(count, {width})
    x = jax.device_put(start, NamedSharding(mesh, P("x")))
    step(x).block_until_ready()
    print("ready", flush=True)
    input()
    for _ in range({calls}):
        x = step(x)
    print(np.array_equal(x, np.roll(start, {calls}, axis=0)))
"""
"""Moves rows from device to device, without waiting between calls."""


@pytest.fixture
def server() -> Iterator[ProxyServer]:
    with pathways.proxy.serve(devices=jax.devices("cpu")) as server:
        yield server


def test_collectives_of_several_clients_never_wait_for_each_other(server: ProxyServer) -> None:
    programs = [
        PROGRAM.format(devices=devices, width=width, calls=calls)
        for devices, width, calls in (("::", 4, 500), ("::-1", 256, 100), ("2:6", 4, 500), ("5:3:-1", 4, 500))
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

"""Functions that another program exported, as placed functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import preloaded
import pytest
from check import assert_close
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from models import layer

import pathways as pw

WRITER = """
import sys, jax, jax.numpy as jnp
types = jax.ShapeDtypeStruct((4, 4), jnp.float32), jax.ShapeDtypeStruct((8, 4), jnp.float32)
exported = jax.export.export(jax.jit(lambda w, x: jnp.tanh(x @ w)))(*types)
open(sys.argv[1], "wb").write(exported.serialize(vjp_order=1))
"""


@pytest.fixture
def embed(tmp_path: Path) -> Callable[..., jax.Array]:
    """A function that another process exported."""
    pytest.importorskip("flatbuffers")
    file = tmp_path / "embed.bin"
    done = preloaded.run("-c", WRITER, file)
    assert done.returncode == 0, done.stderr
    return jax.export.deserialize(file.read_bytes()).call


def check_gradients(embed: Callable[..., jax.Array]) -> None:
    """Compares a step through the function, on a slice, with `jax.jit` of what was exported."""
    devices = pw.make_virtual_device_set()
    placed = pw.jit(embed, devices=devices.add_slice(1, "x"))
    head = pw.jit(lambda w, h: jnp.mean((h @ w) ** 2), devices=devices.add_slice(1, "x"))

    @pw.program
    def step(params, x):
        return jax.value_and_grad(lambda params: head(params[1], placed(params[0], x)))(params)

    random = np.random.default_rng(0)
    params = [random.normal(size=(4, 4)).astype(np.float32) for _ in range(2)]
    x = random.normal(size=(8, 4)).astype(np.float32)
    plain = jax.jit(jax.value_and_grad(lambda params: jnp.mean((layer(params[0], x) @ params[1]) ** 2)))
    assert_close(step(params, x), plain(params), 1e-5)


@pytest.mark.process
@pytest.mark.feature("front_ends", "values")
def test_exported_function_is_placed_and_differentiated(embed) -> None:
    check_gradients(embed)


@pytest.mark.feature("front_ends", "hosts")
def test_exported_function_is_placed_on_hosts(shared_workers, embed) -> None:
    pw.connect(hosts=2)
    check_gradients(embed)


def test_exported_function_is_sharded_where_it_is_placed() -> None:
    """It was exported for one device: which block a device has of each value is up to the slice."""
    w, x = np.random.default_rng(0).normal(size=(2, 4, 4)).astype(np.float32)
    exported = jax.export.export(jax.jit(layer))(w, x)
    square = pw.make_virtual_device_set().add_slice((2, 2), ("x", "y"))
    placed = pw.jit(exported.call, devices=square, in_shardings=(P("x", "y"), P("y")), out_shardings=P("x"))
    result = pw.program(placed)(w, x)
    assert result.sharding.spec == P("x")
    assert_close(result, jax.jit(layer)(w, x), 1e-5)


@pytest.mark.feature("front_ends", "error")
def test_exported_function_of_several_devices_is_refused() -> None:
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    summed = jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
    x = jax.device_put(np.ones((4, 4), np.float32), NamedSharding(mesh, P("x")))
    exported = jax.export.export(jax.jit(summed))(x)
    slice = pw.make_virtual_device_set().add_slice((2,), ("x",))
    message = "the function '.*'.* was exported for 2 devices.* export it for one device"
    for function in (exported.call, jax.checkpoint(lambda x: 2 * exported.call(x))):
        with pytest.raises(ValueError, match=message):
            pw.program(pw.jit(function, devices=slice)).lower(x)

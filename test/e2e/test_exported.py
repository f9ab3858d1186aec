"""Functions that another program has exported, as placed functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    """Returns a function that another process exported."""
    pytest.importorskip("flatbuffers")
    file = tmp_path / "embed.bin"
    done = preloaded.run("-c", WRITER, file)
    assert done.returncode == 0, done.stderr
    return jax.export.deserialize(file.read_bytes()).call


def check_gradients(embed: Callable[..., jax.Array]) -> None:
    """Compares a step through the function, on a slice, with `jax.jit` of the exported function."""
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
    """An export for one device leaves it to the slice which block of each value a device has."""
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


def of_any_length(fun: Callable[..., Any], *sizes: str) -> Callable[..., Any]:
    """Exports a function of vectors whose lengths are symbolic."""
    scope = jax.export.SymbolicScope()
    shapes = [jax.export.symbolic_shape(size, scope=scope) for size in sizes]
    types = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.export.export(jax.jit(fun))(*types).call


SYMBOLIC = {
    "sine": of_any_length(jnp.sin, "n"),
    "identity": of_any_length(lambda x: x, "n"),
    "constant": of_any_length(lambda x: 2 * x, "n"),
    "sum": of_any_length(lambda x: x * x.sum(), "n"),
    "reshape": of_any_length(lambda x: x.reshape(2, -1), "2*n"),
    "length": of_any_length(lambda x: x.shape[0] + x, "n"),
    "loop": of_any_length(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y * x, jnp.sort(x)), "n"),
    "results": of_any_length(lambda x, y: (x[:, None] * y, y.sum()), "n", "m"),
}


@pytest.mark.parametrize("name", SYMBOLIC)
@pytest.mark.parametrize("size", [1, 2])
def test_exported_function_of_symbolic_shapes_is_placed(name: str, size: int):
    """Refines the function to the shapes of each call: alone, and twice in one program."""
    exported = SYMBOLIC[name]
    inputs = 2 if name == "results" else 1
    devices = pw.make_virtual_device_set()
    placed, double = (
        pw.jit(exported, devices=devices.add_slice(size, "x")),
        pw.jit(jnp.add, devices=devices.add_slice(1, "y")),
    )
    x = np.arange(8, dtype=np.float32) / 8
    assert_close(placed(*[x] * inputs), jax.jit(exported)(*[x] * inputs), 1e-6)

    def both(placed, double):
        return lambda x: (placed(*[double(x, x)] * inputs), placed(*[x[:6]] * inputs))

    assert_close(pw.program(both(placed, double))(x), jax.jit(both(exported, jnp.add))(x), 1e-6)


def test_exported_function_of_symbolic_shapes_between_placed_functions():
    devices = pw.make_virtual_device_set()
    double = pw.jit(jnp.add, devices=devices.add_slice(1, "x"))
    sine = SYMBOLIC["sine"]
    x = np.arange(8, dtype=np.float32)
    step = pw.program(lambda x: jax.lax.scan(lambda x, _: (double(sine(x), x), None), x, None, length=2)[0])
    assert_close(step(x), jax.jit(lambda x: jnp.sin(jnp.sin(x) + x) + (jnp.sin(x) + x))(x))


def test_exported_function_of_symbolic_shapes_that_calls_another():
    sine = SYMBOLIC["sine"]
    twice = of_any_length(
        lambda x: sine(x) + sine(jnp.concatenate([x, x]))[: x.shape[0]] + sine(jnp.ones(3)).sum(), "n"
    )
    placed = pw.jit(twice, devices=pw.make_virtual_device_set().add_slice(1, "x"))
    x = np.arange(8, dtype=np.float32)
    assert_close(placed(x), 2 * jnp.sin(x) + 3 * jnp.sin(1.0), 1e-6)


def test_exported_function_of_symbolic_shapes_with_keys_and_gradients():
    pytest.importorskip("flatbuffers")
    (n,) = jax.export.symbolic_shape("n")
    types = jax.eval_shape(lambda: jax.random.key(0)), jax.ShapeDtypeStruct((n,), jnp.float32)
    exported = jax.export.export(jax.jit(lambda key, x: jax.random.normal(key, x.shape) * x**2))(*types)
    noisy = jax.export.deserialize(exported.serialize(vjp_order=1)).call
    devices = pw.make_virtual_device_set()
    placed, total = (pw.jit(f, devices=devices.add_slice(1, "x")) for f in (noisy, jnp.sum))
    key, x = jax.random.key(1), np.arange(8, dtype=np.float32)
    step = pw.program(jax.value_and_grad(lambda x, key: total(placed(key, x))))
    plain = jax.jit(jax.value_and_grad(lambda x, key: jnp.sum(noisy(key, x))))
    assert_close(step(x, key), plain(x, key), 1e-5)


def test_exported_function_refuses_lengths_that_it_is_not_for():
    placed = pw.jit(SYMBOLIC["reshape"], devices=pw.make_virtual_device_set().add_slice(1, "x"))
    with pytest.raises(ValueError, match=r"Division had remainder 1 when computing the value of 'n'"):
        placed(np.ones(7, np.float32))

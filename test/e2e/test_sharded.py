"""Arrays on slices of several devices: their shardings, their values, those of `jax.jit`, and errors."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import preloaded
import pytest
from check import assert_close, assert_equal
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from models import layer

import pathways as pw

AXES = ("data", "model")
Fun = Callable[..., Any]


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


X, W0, W1 = array(12, 8), array(8, 16, seed=1), array(16, 8, seed=2)
MATRIX = np.arange(64, dtype=np.float32).reshape(8, 8)


def slices(*shapes: tuple[int, ...]) -> list[pw.VirtualSlice]:
    """Returns slices of one device set, with the axes "data" and, in two dimensions, "model"."""
    devices = pw.make_virtual_device_set()
    return [devices.add_slice(shape, AXES[: len(shape)]) for shape in shapes]


def double(x: Any) -> Any:
    return x * 2


def on_one_device(fun: Fun, *args: Any) -> Any:
    """Returns the results of `jax.jit` on a single device, which has the axes of every mesh."""
    mesh = jax.make_mesh((1, 1), AXES, (AxisType.Auto,) * 2, devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        return jax.jit(fun)(*args)


def assert_sharding(array: jax.Array, spec: P, virtual: pw.VirtualSlice) -> None:
    """Checks that an array has the expected sharding, over a mesh with the shape and axes of a slice."""
    assert isinstance(array.sharding, NamedSharding)
    mesh = array.sharding.mesh
    assert dict(mesh.shape) == dict(zip(virtual.axis_names, virtual.shape, strict=True))
    wanted = NamedSharding(mesh, spec)
    assert array.sharding.is_equivalent_to(wanted, array.ndim), f"{array.sharding.spec}, wanted {spec}"


# The paper's Figure 2.


@pytest.mark.feature("meshes", "values")
def test_sharded_figure2_of_paper():
    on_a, on_b, on_c = slices((2,), (2,), (2,))
    a = pw.jit(lambda x: x * 2, devices=on_a, in_shardings=P("data"))
    b = pw.jit(lambda x: x + 1, devices=on_b)
    c = pw.jit(lambda x: x / 2, devices=on_c)

    @pw.program
    def f(v):
        x = a(v)
        y = b(x)
        z = a(c(x))
        return y, z

    y, z = f(jnp.array([1.0, 2.0]))
    np.testing.assert_array_equal(y, [3, 5])
    np.testing.assert_array_equal(z, [2, 4])
    assert_sharding(y, P("data"), on_b)
    assert_sharding(z, P("data"), on_a)
    assert [shard.data.tolist() for shard in y.addressable_shards] == [[3.0], [5.0]]
    assert not y.devices() & z.devices()
    # Equal shards on equal meshes are moved by copies.
    cost = f.lower(jnp.array([1.0, 2.0])).compile().cost_analysis()
    assert (cost["launches"], cost["transfers"]) == (4, 3)


# Shardings propagate to values without one.


def test_sharded_parameter_passes_sharding_to_gradient_state_and_activations():
    s0, s1 = slices((2, 2), (2, 2))
    optimizer = optax.adam(1e-2)

    def build(first: Fun, second: Fun) -> Fun:
        def step(params, state, x):
            def loss(params):
                h = first(params["w0"], x)
                y = second(params["w1"], h)
                return jnp.mean(y**2), (h, y)

            (value, (h, y)), gradients = jax.value_and_grad(loss, has_aux=True)(params)
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state, gradients, h, y, value

        return step

    params = {"w0": W0, "w1": W1}
    arguments = params, jax.device_get(optimizer.init(params)), X
    step = pw.program(
        build(pw.jit(layer, devices=s0), pw.jit(layer, devices=s1)),
        in_shardings=({"w0": P(None, "model"), "w1": P("model")}, None, P("data")),
    )
    got = step(*arguments)
    assert_close(got, on_one_device(build(layer, layer), *arguments))
    new, (adam, _), gradients, h, y, value = got
    for tree in (new, adam.mu, adam.nu, gradients):
        assert_sharding(tree["w0"], P(None, "model"), s0)
        assert_sharding(tree["w1"], P("model"), s1)
    assert_sharding(h, P("data", "model"), s0)
    assert_sharding(y, P("data"), s1)
    assert_sharding(value, P(), s1)


UNEQUAL = [((2, 2), (4,)), ((2,), (4,)), ((3,), (2, 2)), ((2, 2), (1,))]


def loss_between(first: Fun, second: Fun) -> Fun:
    """Returns the loss of two layers, the results of both and all gradients, as a function."""

    def f(w0, w1, x):
        def loss(w0, w1, x):
            h = first(w0, x)
            y = second(w1, h)
            return jnp.sum(y**2), (h, y)

        return jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(w0, w1, x)

    return f


@pytest.mark.parametrize(("front", "back"), UNEQUAL)
def test_sharded_data_axis_reaches_stage_of_other_shape(front, back):
    s0, s1 = slices(front, back)
    first = pw.jit(layer, devices=s0, in_shardings=(None, P("data")))
    (value, (h, y)), gradients = pw.program(loss_between(first, pw.jit(layer, devices=s1)))(W0, W1, X)
    wanted = on_one_device(loss_between(layer, layer), W0, W1, X)
    assert_close(((value, (h, y)), gradients), wanted)
    assert_sharding(h, P("data"), s0)
    assert_sharding(y, P("data"), s1) if s1.size > 1 else assert_sharding(y, P(), s1)
    assert_sharding(gradients[2], P("data"), s0)


def test_sharded_from_one_device_to_four():
    s0, s1 = slices((1,), (2, 2))
    second = pw.jit(layer, devices=s1, in_shardings=(P(None, "model"), P("data")))
    (value, (h, y)), gradients = pw.program(loss_between(pw.jit(layer, devices=s0), second))(W0, W1, X)
    wanted = on_one_device(loss_between(layer, layer), W0, W1, X)
    assert_close(((value, (h, y)), gradients), wanted)
    assert_sharding(h, P(), s0)
    assert_sharding(y, P("data", "model"), s1)


def test_sharded_dimension_that_next_slice_does_not_divide_is_replicated():
    s0, s1 = slices((3,), (2,))
    first = pw.jit(layer, devices=s0, in_shardings=(None, P("data")))
    x = array(9, 8)
    (value, (h, y)), gradients = pw.program(loss_between(first, pw.jit(layer, devices=s1)))(W0, W1, x)
    assert_close(((value, (h, y)), gradients), on_one_device(loss_between(layer, layer), W0, W1, x))
    assert_sharding(h, P("data"), s0)
    assert_sharding(y, P(), s1)


INDIVISIBLE: dict[str, Fun] = {
    "slice": lambda a: a[:6],
    "short": lambda a: a[:2],
    "concatenate": lambda a: jnp.concatenate([a, a[:1]]),
    "reshape": lambda a: a.reshape(2, 4, 8),
    "flat": lambda a: a.reshape(-1)[:30],
    "nested": lambda a: jnp.convolve(a.sum(1), jnp.ones(3)),
    "constraint": lambda a: jax.lax.with_sharding_constraint(a[:5], P("data")),
    "empty": lambda a: a[:0],
}


@pytest.mark.parametrize("size", [2, 4])
def test_sharded_results_that_do_not_divide(size):
    """JAX pads inside of a module; Shardy splits axes of the mesh. Between modules there is neither."""
    four, other = slices((4,), (size,))

    def build(on_four: Any, on_other: Any) -> Fun:
        pairs = [(on_four(fun), on_other(jnp.square)) for fun in INDIVISIBLE.values()]
        return lambda a: [read(front(a)) for front, read in pairs]

    step = pw.program(build(pw.jit(devices=four), pw.jit(devices=other)), in_shardings=P("data"))
    got, wanted = step(MATRIX), on_one_device(build(jax.jit, jax.jit), MATRIX)
    assert_close(dict(zip(INDIVISIBLE, got, strict=True)), dict(zip(INDIVISIBLE, wanted, strict=True)))


@pytest.mark.parametrize(
    ("shapes", "combined"),
    [
        (((2,), (2,)), lambda first, second, x: (first(x), second(x), x + 1)),
        (((2,), (4,)), lambda first, second, x: (first(x), second(x), x[0] + 1)),
        (((2,), (2, 2)), lambda first, second, x: (first(x), second(x), x.sum())),
        (((1,), (2,)), lambda first, second, x: (first(x), second(x + x[0]), x[0])),
        (((2,), (4,)), lambda first, second, x: (first(x), second(x), x)[2]),
        (((2,), (2, 2)), lambda first, second, x: (first(x), second(x), x)[1:]),
    ],
    ids=["whole", "row", "sum", "both", "argument alone", "argument"],
)
def test_sharded_argument_mirrored_and_split(shapes, combined):
    """Values that the caller gets and that are computed from it alone are mirrored, too."""
    s0, s1 = slices(*shapes)
    first, second = pw.jit(double, devices=s0, in_shardings=P("data")), pw.jit(lambda x: x + 1, devices=s1)
    got = pw.program(lambda x: combined(first, second, x))(MATRIX[0])
    assert_close(got, on_one_device(lambda x: combined(double, lambda x: x + 1, x), MATRIX[0]))


def test_sharded_dtypes_cross_unequal_meshes():
    dtypes = ["bfloat16", "int8", "bool", "complex64", "float8_e4m3fn"]
    s0, s1 = slices((2, 2), (4,))
    first = pw.jit(lambda xs: jax.tree.map(jnp.transpose, xs), devices=s0, in_shardings=P("data", "model"))
    second = pw.jit(lambda xs: jax.tree.map(jnp.flipud, xs), devices=s1)
    values = [(10 * array(8, 8)).astype(jnp.dtype(dtype)) for dtype in dtypes]
    got = pw.program(lambda xs: second(first(xs)))(values)
    assert_equal(got, [x.T[::-1] for x in values])


def test_sharded_complex_constants():
    """One number, an array, and both inside a scan."""
    s0, s1 = slices((2,), (1,))
    table = ((MATRIX + 1j * MATRIX.T) / 100).astype(np.complex64)

    def rotate(x):
        x = (x * (1 + 2j)) @ table
        return jax.lax.scan(lambda c, row: (c * 1j + row, None), x, jnp.stack([table, table]))[0]

    def build(on_s0: Any, on_s1: Any) -> Fun:
        first, second = on_s0(rotate), on_s1(rotate)
        return lambda x: second(first(x) * (3 - 1j))

    got = pw.program(build(pw.jit(devices=s0), pw.jit(devices=s1)))(table)
    assert_close(got, jax.jit(build(jax.jit, jax.jit))(table))


def test_sharded_three_stages_of_three_shapes_and_back():
    s0, s1, s2 = slices((2, 2), (2,), (1,))
    a = pw.jit(double, devices=s0, in_shardings=P("data", "model"))
    b = pw.jit(lambda x: x + 1, devices=s1)
    c = pw.jit(lambda x: x / 2, devices=s2)
    x, y, z = pw.program(lambda x: (a(x), b(a(x)), a(c(b(a(x))))))(MATRIX)
    np.testing.assert_array_equal(x, MATRIX * 2)
    np.testing.assert_array_equal(y, MATRIX * 2 + 1)
    np.testing.assert_array_equal(z, MATRIX * 2 + 1)
    assert_sharding(z, P("data", "model"), s0)


# Constraints and results.


def twice(w: jax.Array, x: jax.Array) -> jax.Array:
    h = jax.lax.with_sharding_constraint(jnp.tanh(x @ w), P("data", "model"))
    return jax.lax.with_sharding_constraint(jnp.sin(h), P(None, ("data", "model")))


@pytest.mark.parametrize("transform", [lambda f: f, lambda f: jax.grad(lambda w, x: jnp.sum(f(w, x)))])
def test_sharded_two_constraints_in_one_computation(transform):
    (s0,) = slices((2, 2))
    fun = transform(twice)
    got = pw.jit(fun, devices=s0)(W0, X)
    assert_close(got, on_one_device(fun, W0, X))
    mesh = jax.make_mesh((2, 2), AXES, (AxisType.Auto,) * 2, devices=jax.devices()[:4])
    with jax.set_mesh(mesh):
        wanted = jax.jit(fun)(W0, X)
    assert_sharding(got, wanted.sharding.spec, s0)


def test_sharded_constraint_on_several_axes_and_on_none():
    (s0,) = slices((2, 2))

    @pw.jit(devices=s0)
    def f(x):
        rows = jax.lax.with_sharding_constraint(x, P(("model", "data")))
        either = jax.lax.with_sharding_constraint(x + 1, P(P.UNCONSTRAINED, "model"))
        return rows * 2, either, jax.lax.with_sharding_constraint(x + 2, P())

    got = f(MATRIX)
    assert_close(got, (MATRIX * 2, MATRIX + 1, MATRIX + 2), tolerance=0)
    assert_sharding(got[0], P(("model", "data")), s0)
    assert_sharding(got[2], P(), s0)


def test_sharded_results_of_loops_that_xla_shards():
    """XLA folds the multiplications by one, and gives the loops their shardings."""
    (two,) = slices((2,))
    split = pw.jit(double, devices=two, in_shardings=P("data"))

    def run(x: jax.Array) -> Any:
        zeros = jax.jvp(jax.grad(jnp.sum), (x,), (x,))[1]
        first, second = (
            jax.lax.scan(lambda c, _: (jnp.sin(c), None), zeros, None, length=1)[0] * 1 for _ in range(2)
        )
        return split(first), zeros, second

    assert_close(pw.program(run)(array(8)), (jnp.zeros(8),) * 3)


def test_sharded_reshapes_split_axis_of_mesh():
    (four,) = slices((4,))
    split = pw.jit(lambda x: jnp.sin(x.reshape(2, 2, 6)), devices=four)
    nested = pw.jit(lambda x: jnp.resize(x, (6, 4)) * jnp.resize(x[:3], (6, 4)), devices=four)

    def run(x: Any) -> Any:
        return split(x), nested(split(x).reshape(8, 3))

    x = array(24)
    got = pw.program(run, in_shardings=P("data"))(x)
    y = np.sin(x.reshape(2, 2, 6)).reshape(8, 3)
    assert_close(got, (y.reshape(2, 2, 6), np.resize(y, (6, 4)) * np.resize(y[:3], (6, 4))))


def test_sharded_shard_map_inside_placed_function():
    (s0,) = slices((2, 2))

    @pw.jit(devices=s0, in_shardings=P("data"))
    def f(x):
        total = jax.shard_map(lambda x: jax.lax.psum(x, "data"), in_specs=P("data"), out_specs=P())
        return total(x)

    np.testing.assert_array_equal(f(MATRIX), MATRIX[:4] + MATRIX[4:])


def test_sharded_out_shardings_of_jit_are_kept():
    s0, s1 = slices((2, 2), (4,))
    first = pw.jit(lambda x: (x + 1, {"t": x * 2}), devices=s0, out_shardings=(P("model"), {"t": P("data")}))
    second = pw.jit(double, devices=s1, out_shardings=P(None, "data"))
    x, t, y = pw.program(lambda x: (first(x)[0], first(x)[1]["t"], second(x)))(MATRIX)
    assert_sharding(x, P("model"), s0)
    assert_sharding(t, P("data"), s0)
    assert_sharding(y, P(None, "data"), s1)
    assert_close((x, t, y), (MATRIX + 1, MATRIX * 2, MATRIX * 2), tolerance=0)


def test_sharded_out_shardings_of_program_are_kept():
    s0, s1 = slices((2, 2), (2,))
    first, second = pw.jit(double, devices=s0), pw.jit(jnp.sin, devices=s1)

    @pw.program(
        in_shardings=P("data"), out_shardings={"x": P(None, "model"), "y": P(None, "data"), "z": None}
    )
    def f(x):
        x = first(x)
        y = second(x)
        return {"x": x, "y": y, "z": y + 1}

    got = f(MATRIX)
    assert_sharding(got["x"], P(None, "model"), s0)
    assert_sharding(got["y"], P(None, "data"), s1)
    sine = on_one_device(lambda x: jnp.sin(x * 2), MATRIX)
    assert_close(got, {"x": MATRIX * 2, "y": sine, "z": sine + 1})


def test_sharded_prefixes_and_static_arguments():
    (s0,) = slices((2, 2))
    f = pw.jit(
        lambda tree, n, x: jax.tree.map(lambda leaf: leaf * n + x, tree),
        devices=s0,
        static_argnums=1,
        in_shardings=(P("data"), None),
    )
    tree = {"a": MATRIX, "b": [MATRIX + 1, MATRIX + 2]}
    got = f(tree, 3, np.float32(1))
    assert_close(got, jax.tree.map(lambda leaf: leaf * 3 + 1, tree), tolerance=0)
    for leaf in jax.tree.leaves(got):
        assert_sharding(leaf, P("data"), s0)


def test_sharded_trees_of_specs_over_trees_with_none():
    (two,) = slices((2,))
    specs = {"x": P("data"), "none": None, "rest": (None, ())}
    double_x = pw.jit(
        lambda tree: {**tree, "x": tree["x"] * 2}, devices=two, in_shardings=(specs,), out_shardings=specs
    )
    program = pw.program(lambda tree: double_x(tree), in_shardings=(specs,), out_shardings=specs)
    for call in (double_x, program):
        result = call({"x": X, "none": None, "rest": (None, ())})
        assert result["x"].sharding.spec == P("data")
        assert (result["none"], result["rest"]) == (None, (None, ()))
        np.testing.assert_array_equal(result["x"], X * 2)


def test_sharded_typed_keys():
    (s0,) = slices((4,))

    def draw(key, x):
        return x + jax.random.normal(key, x.shape)

    key = jax.random.key(3)
    got = pw.jit(draw, devices=s0, in_shardings=(None, P("data")))(key, MATRIX)
    assert_close(got, on_one_device(draw, key, MATRIX))
    assert_sharding(got, P("data"), s0)


def test_sharded_words_of_key_stay_together():
    (two,) = slices((2,))
    apart = lambda words: jax.lax.with_sharding_constraint(words, P(None, "data"))  # noqa: E731
    read = pw.program(pw.jit(lambda keys: apart(jax.random.key_data(keys)) + 1, devices=two))
    make = pw.program(pw.jit(lambda words: jax.random.wrap_key_data(apart(words)), devices=two))
    keys = jax.random.split(jax.random.key(0), 4)
    for passed in (keys, jax.random.clone(keys), make(jax.random.key_data(keys))):
        np.testing.assert_array_equal(read(passed), jax.random.key_data(keys) + 1)


# Arguments: in place, elsewhere, or on the host.


@pytest.fixture
def moves(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Returns a function for the messages about moves in every call since it was last called."""
    caplog.set_level(logging.INFO, logger="pathways")

    def messages() -> list[str]:
        found = [record.getMessage() for record in caplog.records if "is moved" in record.getMessage()]
        caplog.clear()
        return found

    return messages


def test_sharded_results_passed_again_are_not_moved(moves):
    s0, s1 = slices((2, 2), (4,))
    first = pw.jit(lambda w, x: x @ w, devices=s0, in_shardings=(P(None, "model"), P("data")))
    second = pw.jit(lambda w, h: h @ w, devices=s1)

    def step(params, x, first=first, second=second):
        gradients = jax.grad(lambda p: jnp.sum(second(p[1], first(p[0], x)) ** 2))(params)
        return [p - 1e-4 * g for p, g in zip(params, gradients, strict=True)]

    program = pw.program(step, donate_argnums=0)
    wanted = params = [W0, W1]
    for _ in range(4):
        before, params = params, program(params, X)
        wanted = on_one_device(lambda p, x: step(p, x, lambda w, x: x @ w, lambda w, x: x @ w), wanted, X)
        assert_close(params, wanted)
        if isinstance(before[0], jax.Array):
            assert all(p.is_deleted() for p in before)
            assert [p.sharding for p in before] == [p.sharding for p in params]
    assert moves() == []


def test_sharded_arguments_of_other_sharding_are_moved(moves):
    (s0,) = slices((2, 2))
    f = pw.jit(double, devices=s0, in_shardings=P("data", "model"))
    result = f(MATRIX)
    mesh = result.sharding.mesh
    assert moves() == []
    other = jax.make_mesh((8,), ("x",), (AxisType.Auto,))
    for given in (
        NamedSharding(mesh, P("model", "data")),
        NamedSharding(mesh, P()),
        NamedSharding(other, P("x")),
        jax.devices()[7],
    ):
        again = f(jax.device_put(MATRIX, given))
        assert_close(again, MATRIX * 2, tolerance=0)
        assert again.sharding == result.sharding
    (message,) = moves()
    assert "argument x lives on" in message
    # Equivalent specs: the same placement.
    for spec in (P("data", "model"), P(("data",), ("model",))):
        np.testing.assert_array_equal(f(jax.device_put(MATRIX, NamedSharding(mesh, spec))), MATRIX * 2)
    np.testing.assert_array_equal(f(MATRIX), MATRIX * 2)
    assert moves() == []


def test_sharded_donated_argument_of_other_sharding_is_consumed():
    (s0,) = slices((2, 2))
    place = pw.jit(double, devices=s0, in_shardings=P("data"))
    f = pw.program(lambda x: place(x), donate_argnums=0)
    mesh = f(np.ones((8, 8))).sharding.mesh
    x = jax.device_put(MATRIX, NamedSharding(mesh, P("model")))
    np.testing.assert_array_equal(f(x), MATRIX * 2)
    assert x.is_deleted()


def test_sharded_results_of_other_program_are_accepted(moves):
    (s0,) = slices((2, 2))
    first = pw.jit(double, devices=s0, in_shardings=P(None, "model"))
    second = pw.jit(lambda x: x + 1, devices=s0, in_shardings=P(None, "model"))
    third = pw.jit(lambda x: x + 1, devices=s0, in_shardings=P("data"))
    np.testing.assert_array_equal(second(first(MATRIX)), MATRIX * 2 + 1)
    assert moves() == []
    np.testing.assert_array_equal(third(first(MATRIX)), MATRIX * 2 + 1)
    assert len(moves()) == 1


# Slices of one device, and slices without shardings.


def test_sharded_slices_of_one_device_ignore_specs():
    s0, s1 = slices((1,), (1, 1))
    plain = pw.program(loss_between(pw.jit(layer, devices=s0), pw.jit(layer, devices=s1)))(W0, W1, X)
    first = pw.jit(layer, devices=s0, in_shardings=(P(), P("data")), out_shardings=P("data"))
    second = pw.jit(layer, devices=s1, in_shardings=(P(None, "model"), P("data")))
    given = pw.program(loss_between(first, second))(W0, W1, X)
    assert_close(given, plain, tolerance=0)
    assert_close(plain, on_one_device(loss_between(layer, layer), W0, W1, X))
    (_, (h, y)), _ = plain
    assert_sharding(h, P(), s0)
    assert_sharding(y, P(), s1)
    # A computation alone is the module that jax.jit has, to the last bit.
    np.testing.assert_array_equal(pw.jit(layer, devices=s0)(W0, X), jax.jit(layer)(W0, X))


def test_sharded_values_without_spec_are_replicated():
    s0, s1 = slices((2, 2), (3,))
    f = pw.program(loss_between(pw.jit(layer, devices=s0), pw.jit(layer, devices=s1)))
    (value, (h, y)), gradients = f(W0, W1, X)
    assert_close(((value, (h, y)), gradients), on_one_device(loss_between(layer, layer), W0, W1, X))
    assert_sharding(h, P(), s0)
    assert_sharding(y, P(), s1)


def test_sharded_argument_and_counter_read_by_both_slices():
    s0, s1 = slices((2, 2), (2,))
    first = pw.jit(lambda x, n: x * n, devices=s0, in_shardings=(P("data"), None))
    second = pw.jit(lambda x, n: x + n, devices=s1, in_shardings=(P("data"), None))

    @pw.program(donate_argnums=1)
    def f(x, n):
        return first(x, n), second(x, n), n + 1

    n = np.float32(3)
    for k in range(3):
        a, b, n = f(MATRIX, n)
        np.testing.assert_array_equal(a, MATRIX * (3 + k))
        np.testing.assert_array_equal(b, MATRIX + (3 + k))


# Several threads.

STRESS = """
import threading, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec as P
import pathways as pw

pw.connect(cpu_devices=4)
one, two = pw.make_virtual_device_set(), pw.make_virtual_device_set()
whole = one.add_slice((4,), ("x",))
halves = [two.add_slice((2,), ("x",)) for _ in range(2)]


def contract(x):  # an all-reduce
    return jax.lax.with_sharding_constraint(jax.lax.with_sharding_constraint(x, P(None, "x")) @ W, P())


W = np.random.default_rng(0).integers(-1, 2, size=(8, 8)).astype(np.float32)
f = pw.jit(contract, devices=whole)
left, right = (pw.jit(contract, devices=half) for half in halves)
g = pw.program(lambda x: right(left(x)))

start = np.eye(8, dtype=np.float32)
wanted = [start]
for _ in range(6):
    wanted.append(wanted[-1] @ W % 7)
counts, problems = [0] * 4, []
shrink = pw.jit(lambda x: x % 7, devices=whole)
ready = threading.Barrier(4)
f(start), g(start), shrink(start)
end = time.monotonic() + 2


def work(number):
    ready.wait()
    while time.monotonic() < end and not problems:
        # Results are not awaited before the end of a round, so that inputs are pending.
        a, b = start, start
        for step in range(6):
            if number % 2:
                b = g(start)
            a = shrink(f(a))
            if not number % 2:
                b = g(start)
        if not np.array_equal(a, wanted[6]) or not np.array_equal(b, start @ W @ W):
            problems.append((np.asarray(a), np.asarray(b)))
        counts[number] += 1


threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not problems, problems
assert min(counts) > 0, counts
print("rounds", sum(counts))
"""


@pytest.mark.process
def test_sharded_threads_alternate_programs_with_collectives():
    # In a process of its own: XLA ends one that deadlocks.
    done = preloaded.run("-c", STRESS)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) >= 4


# Errors before anything runs.


def physical() -> NamedSharding:
    return NamedSharding(
        jax.make_mesh((2, 2), AXES, (AxisType.Auto,) * 2, devices=jax.devices()[:4]), P("data")
    )


def constrain(spec: Any) -> Fun:
    return lambda x: jax.lax.with_sharding_constraint(x * 1, spec)


UNKNOWN = "axis 'rows' is not in the mesh, which has data, model"
ODD = r"dimension 0 of size 7 is not divisible by 2 \(axes data\)"
BOTH = r"dimension 0 of size 6 is not divisible by 4 \(axes data, model\)"
TWICE = "axis 'data' is used twice"


@pytest.mark.feature("meshes", "error")
@pytest.mark.parametrize(
    ("which", "spec", "rows", "message"),
    [
        ("in_shardings", P("rows"), 8, UNKNOWN),
        ("out_shardings", P("data", "data"), 8, TWICE),
        ("in_shardings", P(("data", "model"), "data"), 8, TWICE),
        ("out_shardings", P("data"), 7, ODD),
        ("in_shardings", P(("data", "model")), 6, BOTH),
        ("out_shardings", P(None, None, "data"), 8, "the spec has 3 dimensions, the array 2"),
    ],
)
def test_sharded_spec_that_does_not_fit(which, spec, rows, message):
    (s0,) = slices((2, 2))
    x = jax.ShapeDtypeStruct((rows, 8), np.float32)
    placed = pw.jit(double, devices=s0, **{which: spec})
    with pytest.raises(ValueError, match=f"{which} of 'double' at .* on slice {s0.name}: {message}"):
        placed.lower(x)
    with pytest.raises(ValueError, match=f"{which} of 'double' at .* on slice {s0.name}: {message}"):
        placed(np.ones(x.shape, np.float32))
    program = pw.program(lambda x: pw.jit(double, devices=s0)(x), **{which: spec})
    with pytest.raises(pw.ProgramError, match=f"program 'lambda': .* on @{s0.name}: {message}"):
        program.lower(x)


@pytest.mark.parametrize(
    ("spec", "message"),
    [(P("rows"), "Resource axis: rows"), (P("data", "data"), "duplicate entries for `data`")],
)
def test_sharded_constraint_that_does_not_fit_is_error_of_jax(spec, message):
    (s0,) = slices((2, 2))
    # JAX has a class of its own for the second.
    with pytest.raises(Exception, match=message):
        pw.jit(constrain(spec), devices=s0).lower(MATRIX)


@pytest.mark.parametrize(
    ("which", "specs", "error", "message"),
    [
        ("in_shardings", ({"w": P()},), ValueError, "do not match the tree of their arrays: .*types"),
        ("out_shardings", (P(), P()), ValueError, "do not match the tree of their arrays: .*different"),
        ("in_shardings", "data", TypeError, "expected a PartitionSpec or None, got str"),
        ("out_shardings", "data", TypeError, "expected a PartitionSpec or None, got str"),
        (
            "out_shardings",
            P(P.UNCONSTRAINED, "data"),
            ValueError,
            "unconstrained, which needs with_sharding_constraint",
        ),
    ],
)
def test_sharded_specs_of_other_tree_or_type(which, specs, error, message):
    (s0,) = slices((2, 2))
    with pytest.raises(error, match=f"(?s){which} of 'double'.*{message}"):
        pw.jit(double, devices=s0, **{which: specs}).lower(MATRIX)
    with pytest.raises(error, match=f"(?s){which} of program 'double'.*{message}"):
        pw.program(pw.jit(double, devices=s0), **{which: specs}).lower(MATRIX)


@pytest.mark.parametrize("which", ["in_shardings", "out_shardings"])
def test_sharded_spec_over_physical_devices(which):
    (s0,) = slices((2, 2))
    message = (
        rf"{which} of {{}}'double': NamedSharding\(.* names physical devices.*give the PartitionSpec alone"
    )
    with pytest.raises(TypeError, match=message.format("")):
        pw.jit(double, devices=s0, **{which: physical()}).lower(MATRIX)
    with pytest.raises(TypeError, match=message.format("program ")):
        pw.program(pw.jit(double, devices=s0), **{which: physical()}).lower(MATRIX)


@pytest.mark.parametrize(
    "make",
    [
        lambda: constrain(physical()),
        lambda: lambda x: jax.jit(double, in_shardings=physical())(x),
        lambda: lambda x: jax.device_put(x, physical()),
        lambda: jax.grad(lambda x: jnp.sum(constrain(physical())(x))),
    ],
    ids=["constraint", "jit", "device_put", "grad"],
)
def test_sharded_constraint_over_physical_devices(make):
    (s0,) = slices((2, 2))
    here = re.escape(Path(__file__).name)
    message = (
        rf"program '.*': NamedSharding\(.* at .*{here}:\d+.* names physical devices.*PartitionSpec alone"
    )
    with pytest.raises(ValueError, match=message):
        pw.jit(make(), devices=s0).lower(MATRIX)
    with pytest.raises(ValueError, match=message):
        pw.program(lambda x: pw.jit(double, devices=s0)(make()(x))).lower(MATRIX)


def test_sharded_constraint_over_mesh_of_no_slice():
    (s0,) = slices((2, 2))
    mesh = jax.sharding.AbstractMesh((4,), ("rows",), axis_types=(AxisType.Auto,))
    message = r"program '.*': NamedSharding\(.* is over a mesh that no slice of the program has"
    with pytest.raises(ValueError, match=message):
        pw.jit(constrain(NamedSharding(mesh, P("rows"))), devices=s0).lower(MATRIX)


def test_sharded_arguments_by_name_with_specs_by_position():
    (s0,) = slices((2, 2))
    message = "in_shardings of {}'double' describe positional arguments, but x is given by name"
    with pytest.raises(ValueError, match=message.format("")):
        pw.jit(double, devices=s0, in_shardings=P("data")).lower(x=MATRIX)
    with pytest.raises(ValueError, match=message.format("program ")):
        pw.program(pw.jit(double, devices=s0), in_shardings=P("data")).lower(x=MATRIX)


def test_sharded_mesh_larger_than_island():
    (s0,) = slices((4, 4))
    ran = []

    @pw.jit(devices=s0, in_shardings=P("data"))
    def f(x):
        jax.debug.callback(ran.append, x[0, 0])
        return x * 2

    message = rf"program f: not enough devices: it needs 16.*{s0.name}: 16.*there are 8 \(island0: 8\)"
    with pytest.raises(pw.ResourceError, match=message):
        f(MATRIX)
    assert not ran


def test_sharded_error_leaves_nothing_behind():
    (s0,) = slices((2, 2))
    f = pw.jit(double, devices=s0, in_shardings=P("data"))
    with pytest.raises(ValueError, match=ODD):
        f(np.ones((7, 8), np.float32))
    np.testing.assert_array_equal(f(MATRIX), MATRIX * 2)

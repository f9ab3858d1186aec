"""`pw.accumulate` in a program gives what it gives elsewhere: the results of a scan over the microbatches.

Each test writes a step once, for several places. A program puts these on slices of their own; the reference
replaces them by `jax.jit`, so that `pw.accumulate` is a `jax.lax.scan` inside one module.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import pathways as pw

Fun = Callable[..., Any]
Place = Callable[[Fun], Fun]
Build = Callable[..., Fun]

SCHEDULES = ["program", "gpipe", "1f1b", "interleaved-1f1b", "eager"]
M = 4


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def on_slices(*shapes: tuple[int, ...], **options: Any) -> list[Place]:
    """What puts functions on slices of a device set, with the axes "data" and, in two dimensions, "model"."""
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice(shape, ("data", "model")[: len(shape)], **options) for shape in shapes]
    return [pw.jit(devices=slice) for slice in slices]


def assert_close(got: Any, wanted: Any, tolerance: float = 1e-6) -> None:
    """The same structure, types and, relative to the norm of each array, values on every device."""
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert (a.shape, a.dtype, a.aval.weak_type) == (b.shape, b.dtype, b.aval.weak_type)
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        whole = np.asarray(b).astype(np.float64)
        assert np.isfinite(whole).all()
        for shard in a.addressable_shards:
            error = np.linalg.norm(np.asarray(shard.data).astype(np.float64) - whole[shard.index])
            assert error <= tolerance * np.linalg.norm(whole)


def check(
    build: Build,
    *args: Any,
    shapes: Sequence[tuple[int, ...]] = ((1,), (1,)),
    tolerance: float = 1e-6,
    **options: Any,
) -> pw.Program:
    """Runs a step on slices, and as one module of `jax.jit`; returns the program."""
    program = pw.program(build(*on_slices(*shapes)), **options)
    # First: the program may consume what it gets.
    wanted = jax.jit(build(*[jax.jit] * len(shapes)))(*args)
    assert_close(program(*args), wanted, tolerance)
    return program


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def squared_error(prediction: jax.Array, target: jax.Array) -> jax.Array:
    return jnp.mean((prediction - target) ** 2)


def descend(params: Any, gradients: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 0.1 * g.astype(p.dtype), params, gradients)


def training_step(loss: Fun, count: int = M) -> Fun:
    """A step of gradient descent over the microbatches of a batch."""

    def step(params: Any, batch: Any) -> tuple[Any, Any]:
        value, gradients = pw.accumulate(jax.value_and_grad(loss), count)(params, batch)
        return value, descend(params, gradients)

    return step


def mlp(*place: Place, count: int = M) -> Fun:
    """A step of a model with one layer on each place."""
    stages = [on(layer) for on in place]

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        for stage, w in zip(stages, params, strict=True):
            x = stage(w, x)
        return squared_error(x, y)

    return training_step(loss, count)


def looped(*place: Place) -> Fun:
    """The same with two layers on each place, which the batch goes round twice."""
    return mlp(*place, *place)


def weights(count: int, width: int = 8) -> list[np.ndarray]:
    return [array(width, width, seed=n) / np.sqrt(width, dtype=np.float32) for n in range(count)]


BATCH = (array(16, 8, seed=10), array(16, 8, seed=11))


def launches(program: pw.Program, *args: Any) -> list[str]:
    return [line for line in program.lower(*args).as_text().splitlines() if '"pw.launch"' in line]


# Schedules.


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("stages", [2, 4])
def test_a_training_step(stages, schedule):
    check(mlp, weights(stages), BATCH, shapes=[(1,)] * stages, schedule=schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_two_stages_on_each_slice(schedule):
    check(looped, weights(4), BATCH, schedule=schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_training_step_in_double_precision(schedule):
    with jax.enable_x64(True):
        params, batch = jax.tree.map(np.float64, (weights(2), BATCH))
        got = pw.program(mlp(*on_slices((1,), (1,))), schedule=schedule)(params, batch)
        wanted = jax.jit(mlp(jax.jit, jax.jit))(params, batch)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
            assert a.dtype == np.float64
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=0)


def test_schedules_give_the_same_bits():
    place = on_slices((1,), (1,))
    results = [pw.program(looped(*place), schedule=name)(weights(4), BATCH) for name in SCHEDULES]
    for result in results[1:]:
        for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(results[0]), strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_loop_without_gradients():
    def build(*place):
        first, second = (on(layer) for on in place)

        def predict(params, x):
            return second(params[1], first(params[0], x))

        return pw.accumulate(predict, M, reduce="concat")

    for schedule in SCHEDULES:
        check(build, weights(2), BATCH[0], schedule=schedule)


# Outside of programs, where `pw.accumulate` is a scan: the reference of all other tests.


def test_the_scan_gives_what_the_whole_batch_gives():
    stages = [layer, layer]

    def loss(params, batch):
        x, y = batch
        for stage, w in zip(stages, params, strict=True):
            x = stage(w, x)
        return squared_error(x, y)

    value, gradients = jax.value_and_grad(loss)(weights(2), BATCH)
    wanted = value, descend(weights(2), gradients)
    for count in (1, 2, 16):
        step = training_step(loss, count)
        assert_close(step(weights(2), BATCH), wanted)
        assert_close(jax.jit(step)(weights(2), BATCH), wanted)


def test_the_scan_under_vmap():
    total = pw.accumulate(
        lambda w, x: {"sum": w * x.sum(), "rows": x}, 2, reduce={"sum": "sum", "rows": "concat"}
    )
    got = jax.vmap(total, in_axes=(0, None))(jnp.arange(3.0), jnp.arange(4.0))
    assert_close(got, {"sum": 6 * jnp.arange(3.0), "rows": jnp.tile(jnp.arange(4.0), (3, 1))}, 0)


def test_the_function_is_traced_once():
    traces = []

    def total(w, x):
        traces.append(x.shape)
        return w * x.sum()

    pw.accumulate(total, 2)(1.0, BATCH[0])
    assert traces == [(8, 8)]
    (on,) = on_slices((1,))
    product = on(lambda w, x: w * x.sum())
    pw.program(pw.accumulate(lambda w, x: (traces.append(x.shape), product(w, x))[1], 4))(1.0, BATCH[0])
    assert traces == [(8, 8), (4, 8)]


def test_inside_a_placed_function_it_is_a_scan():
    def build(first, second):
        count = first(pw.accumulate(lambda w, x: layer(w, x).sum(), M, reduce="sum"))
        return lambda w, x: second(jnp.sin)(count(w, x))

    program = check(build, weights(1)[0], BATCH[0])
    assert len(launches(program, weights(1)[0], BATCH[0])) == 2


# What is reduced, and how.


def test_auxiliary_results_with_a_reduction_each():
    def build(*place):
        first, second = (on(layer) for on in place)

        def loss(params, batch):
            x, y = batch
            h = first(params[0], x)
            prediction = second(params[1], h)
            right = jnp.sum((prediction > 0) == (y > 0), dtype=jnp.int32)
            return squared_error(prediction, y), {"right": right, "hidden": h, "prediction": prediction}

        def step(params, batch):
            kinds = {"right": "sum", "hidden": "concat", "prediction": "concat"}
            reduce = (("mean", kinds), "mean")
            (value, aux), gradients = pw.accumulate(jax.value_and_grad(loss, has_aux=True), M, reduce=reduce)(
                params, batch
            )
            return value, aux, descend(params, gradients)

        return step

    program = check(build, weights(2), BATCH, schedule="1f1b")
    _, aux, _ = program(weights(2), BATCH)
    assert aux["right"].dtype == jnp.int32
    assert aux["hidden"].shape == (16, 8)


@pytest.mark.parametrize("kind", ["mean", "sum", "concat"])
def test_one_reduction_for_all_results(kind):
    def build(*place):
        first, second = (on(layer) for on in place)

        def outputs(params, x):
            h = first(params[0], x)
            return {"h": h, "rest": [second(params[1], h)]}

        return pw.accumulate(outputs, M, reduce=kind)

    check(build, weights(2), BATCH[0])


def test_results_that_no_placed_call_makes():
    """The microbatch itself, glue on it, a parameter, a constant: all are reduced like any other result."""

    def build(on, _):
        stage = on(layer)

        def outputs(w, x):
            return {"stage": stage(w, x), "x": x, "glue": jnp.sin(x), "w": w, "one": jnp.ones(3)}

        def step(w, x):
            return [pw.accumulate(outputs, M, reduce=kind)(w, x) for kind in ("sum", "concat", "mean")]

        return step

    check(build, weights(1)[0], BATCH[0])


def test_a_result_that_is_returned_twice_or_read_on():
    def build(*place):
        first, second = (on(layer) for on in place)

        def outputs(params, x):
            h = first(params[0], x)
            return h, h, second(params[1], h).sum()

        return pw.accumulate(outputs, M, reduce=("sum", "concat", "sum"))

    check(build, weights(2), BATCH[0], schedule="gpipe")


def test_integers_are_summed_and_joined():
    def build(first, second):
        shift = first(lambda n, x: x + n)
        clip = second(lambda x: jnp.minimum(x, 7))

        def outputs(n, x):
            y = clip(shift(n, x))
            return y.sum(), y, y > 3

        return pw.accumulate(outputs, M, reduce=("sum", "concat", "concat"))

    check(build, np.int32(2), np.arange(16, dtype=np.int32), tolerance=0)


def test_empty_results_are_joined_inside_and_outside_of_programs():
    batch = np.ones((4, 0), np.float32)

    def both(x):
        return x * 2, x.T

    (on_s0,) = on_slices((1,))
    placed = on_s0(both)
    inside = pw.program(lambda x: pw.accumulate(placed, 2, reduce="concat", batch_argnums=0)(x))(batch)
    outside = pw.accumulate(both, 2, reduce="concat", batch_argnums=0)(batch)
    assert [x.shape for x in inside] == [x.shape for x in outside] == [(4, 0), (0, 2)]


@pytest.mark.filterwarnings("ignore:.*nothing is pipelined")
@pytest.mark.parametrize("argnums", [1, -1, (0, 1), [0, 2]])
def test_positions_of_the_batch(argnums):
    def build(first, second):
        f, g = first(lambda a, b: (a * b.sum()).sum()), second(jnp.cos)
        return pw.accumulate(lambda a, b, c: g(f(a, b)) + c.sum(), 2, batch_argnums=argnums)

    check(build, array(4), array(4, 3, seed=1), array(2, 4, seed=2))


def test_shared_arguments_by_name():
    def build(first, second):
        f, g = first(layer), second(jnp.cos)
        total = pw.accumulate(lambda w, x, scale: g(f(w, x)).sum() * scale, M)
        return lambda w, x, scale: total(w, x, scale=scale)

    check(build, weights(1)[0], BATCH[0], np.float32(3))


# Models.


def test_checkpointed_stages():
    def build(*place):
        stages = [jax.checkpoint(on(lambda w, x: layer(w, layer(w, x)))) for on in place]

        def loss(params, batch):
            x, y = batch
            for stage, w in zip(stages, params, strict=True):
                x = stage(w, x)
            return squared_error(x, y)

        return training_step(loss)

    for schedule in SCHEDULES:
        check(build, weights(2), BATCH, schedule=schedule)


def test_a_checkpoint_around_the_whole_loss():
    def build(*place):
        first, second = (on(layer) for on in place)

        @jax.checkpoint
        def loss(params, batch):
            x, y = batch
            return squared_error(second(params[1], first(params[0], x)), y)

        return training_step(loss)

    check(build, weights(2), BATCH, schedule="1f1b")


def test_gradients_alone_of_a_checkpointed_loss():
    """No forward call is left but the repeated ones; these are the stages."""

    def build(*place):
        stages = [on(layer) for on in (*place, *place)]

        @jax.checkpoint
        def loss(params, batch):
            x, y = batch
            for stage, w in zip(stages, params, strict=True):
                x = jnp.sin(stage(w, x))
            return squared_error(x, y)

        def step(params, batch):
            return descend(params, pw.accumulate(jax.grad(loss), M)(params, batch))

        return step

    program = check(build, weights(4), BATCH, schedule="1f1b")
    text = program.lower(weights(4), BATCH).as_text("imported")
    assert {int(n) for n in re.findall(r"stage = (\d+)", text)} == {0, 1, 2, 3}


def test_a_key_for_each_microbatch():
    def dropout(w, x, key):
        h = layer(w, x)
        return jnp.where(jax.random.bernoulli(key, 0.5, h.shape), h, 0)

    def build(*place):
        first, second = (on(dropout) for on in place)

        def loss(params, batch):
            x, y, keys = batch
            one, two = jax.random.split(keys[0])
            return squared_error(second(params[1], first(params[0], x, one), two), y)

        def step(params, batch, key):
            return training_step(loss)(params, (*batch, jax.random.split(key, M)))

        return step

    check(build, weights(2), BATCH, jax.random.key(0), schedule="1f1b")


def test_keys_are_part_of_the_batch_and_of_the_result():
    def build(first, second):
        noise = first(jax.vmap(lambda key: jax.random.normal(key, (3,))))
        fold = second(jax.vmap(lambda key: jax.random.fold_in(key, 1)))
        return pw.accumulate(lambda keys: (noise(keys), fold(keys)), 2, reduce="concat", batch_argnums=0)

    check(build, jax.random.split(jax.random.key(1), 6))


def test_gradients_of_another_type_than_parameters():
    def build(*place):
        first, second = (on(layer) for on in place)

        def loss(params, batch):
            x, y = batch
            return squared_error(second(params[1], first(params[0], x)), y)

        def gradients(params, batch):
            value, found = jax.value_and_grad(loss)(params, batch)
            return value, jax.tree.map(lambda g: g.astype(jnp.bfloat16), found)

        def step(params, batch):
            value, found = pw.accumulate(gradients, M)(params, batch)
            return value, found, descend(params, found)

        return step

    # A sum of numbers with 8 bits.
    program = check(build, weights(2), BATCH, tolerance=2**-8)
    _, found, params = program(weights(2), BATCH)
    assert {g.dtype for g in found} == {jnp.dtype(jnp.bfloat16)}
    assert {p.dtype for p in params} == {jnp.dtype(jnp.float32)}


def test_weights_are_cast_once_in_front_of_the_loop():
    def build(*place):
        first, second = (on(layer) for on in place)

        def loss(half, batch):
            x, y = batch
            return squared_error(second(half[1], first(half[0], x.astype(jnp.bfloat16))).astype(y.dtype), y)

        def step(params, batch):
            half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
            value, gradients = pw.accumulate(jax.value_and_grad(loss), M)(half, batch)
            return value, descend(params, gradients)

        return step

    check(build, weights(2), BATCH, tolerance=2**-8, schedule="1f1b")


def test_a_placed_call_on_parameters_only_runs_once():
    def normalise(w):
        return w / jnp.linalg.norm(w)

    def build(*place):
        prepare = [on(normalise) for on in place]
        stages = [on(layer) for on in place]

        def loss(params, batch):
            x, y = batch
            for f, stage, w in zip(prepare, stages, params, strict=True):
                x = stage(f(w), x)
            return squared_error(x, y)

        return training_step(loss)

    program = check(build, weights(2), BATCH, schedule="1f1b")
    calls = [line for line in launches(program, weights(2), BATCH) if "callee = @normalise" in line]
    assert [line.count('kind = "fwd"') for line in calls if "loop" not in line] == [1, 1]
    assert not any('kind = "fwd"' in line for line in calls if "loop" in line)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_donated_parameters(schedule):
    step = pw.program(mlp(*on_slices((1,), (1,))), schedule=schedule, donate_argnums=0)
    reference = jax.jit(mlp(jax.jit, jax.jit))
    params, wanted = jax.tree.map(jnp.array, weights(2)), weights(2)
    for _ in range(3):
        before = params
        value, params = step(params, BATCH)
        loss, wanted = reference(wanted, BATCH)
        assert all(p.is_deleted() for p in before)
        assert_close((value, params), (loss, wanted))


def test_a_donated_batch():
    step = pw.program(mlp(*on_slices((1,), (1,))), donate_argnums=1)
    batch = jax.tree.map(jnp.array, BATCH)
    with pytest.warns(pw.PathwaysWarning, match=r"donated buffers were not usable: batch\[0\]"):
        results = step(weights(2), batch)
    assert_close(results, jax.jit(mlp(jax.jit, jax.jit))(weights(2), BATCH))
    assert all(leaf.is_deleted() for leaf in batch)


def test_parameters_in_dictionaries_and_lists():
    def block(p, x):
        return x + layer(p["w"], x) + p["b"]

    def build(*place):
        stages = [on(block) for on in place for _ in range(6)]

        def loss(params, batch):
            x, y = batch["x"], batch["y"]
            for n, stage in enumerate(stages):
                x = stage(params["layers"][f"layer_{n}"], x)
            return squared_error(x * params["scale"][0], y)

        return training_step(loss)

    params = {
        "layers": {f"layer_{n}": {"w": w, "b": array(8, seed=n)} for n, w in enumerate(weights(12))},
        "scale": [np.float32(0.1)],
    }
    check(build, params, dict(zip("xy", BATCH, strict=True)), schedule="1f1b")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_skip_connections(schedule):
    def build(*place):
        f, g, h = (on(layer) for on in place)

        def loss(params, batch):
            x, y = batch
            a = f(params[0], x)
            b = g(params[1], a) + a
            return squared_error(h(params[2], b) + jnp.sin(a) * x, y)

        return training_step(loss)

    check(build, weights(3), BATCH, shapes=[(1,)] * 3, schedule=schedule)


def test_several_values_cross_a_boundary():
    def split(w, x):
        h = layer(w, x)
        return {"gate": jax.nn.sigmoid(h[:, :4]), "value": h[:, 4:], "mask": h[:, 0] > 0}

    def join(w, parts, scale):
        return parts["mask"][:, None] * jnp.tile(parts["gate"] * parts["value"], 2) @ w * scale

    def build(*place):
        f, g = place[0](split), place[1](join)

        def loss(params, batch):
            x, y = batch
            return squared_error(g(params[1], f(params[0], x), jnp.mean(x)), y)

        return training_step(loss)

    check(build, weights(2), BATCH, schedule="1f1b")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_tied_embedding(schedule):
    def build(first, second):
        embed, predict = first(lambda table, x: table[x]), second(lambda table, h: h @ table.T)
        middle = second(layer)

        def loss(params, batch):
            tokens, targets = batch
            logits = predict(params["table"], middle(params["w"], embed(params["table"], tokens)))
            return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, targets))

        return training_step(loss)

    tokens = np.random.default_rng(0).integers(0, 20, size=(2, 16), dtype=np.int32)
    params = {"table": array(20, 8), "w": weights(1)[0]}
    check(build, params, tuple(tokens), schedule=schedule)


def test_stages_of_different_size():
    def build(first, second):
        narrow = first(layer)
        wide = [second(layer), second(layer), second(lambda w, x: x @ w)]

        def loss(params, batch):
            x, y = batch
            x = narrow(params[0], x)
            for stage, w in zip(wide, params[1:], strict=True):
                x = stage(w, x)
            return squared_error(x, y)

        return training_step(loss)

    params = [array(8, 4), array(4, 32, seed=1), array(32, 16, seed=2), array(16, 8, seed=3)]
    check(build, params, BATCH, schedule="1f1b", tolerance=2e-6)


@pytest.mark.parametrize("schedule", ["program", "1f1b"])
def test_adamw_with_clipped_gradients(schedule):
    optimizer = optax.chain(optax.clip_by_global_norm(0.01), optax.adamw(1e-2))

    def build(*place):
        stages = [on(layer) for on in place]

        def loss(params, batch):
            x, y = batch
            for stage, w in zip(stages, params, strict=True):
                x = stage(w, x)
            return squared_error(x, y)

        def step(params, state, batch):
            value, gradients = pw.accumulate(jax.value_and_grad(loss), M)(params, batch)
            updates, state = optimizer.update(gradients, state, params)
            return value, optax.apply_updates(params, updates), state

        return step

    params = jax.tree.map(jnp.array, weights(2))
    state, reference_state = optimizer.init(params), optimizer.init(params)
    step = pw.program(build(*on_slices((1,), (1,))), schedule=schedule, donate_argnums=(0, 1))
    reference, wanted = jax.jit(build(jax.jit, jax.jit)), weights(2)
    for _ in range(3):
        value, params, state = step(params, state, BATCH)
        loss, wanted, reference_state = reference(wanted, reference_state, BATCH)
        assert_close((value, params, state), (loss, wanted, reference_state))


def test_two_loops_in_a_program():
    """Training, then evaluation with the new parameters, over microbatches of another size."""

    def build(*place):
        stages = [on(layer) for on in place]

        def loss(params, batch):
            x, y = batch
            for stage, w in zip(stages, params, strict=True):
                x = stage(w, x)
            return squared_error(x, y)

        def step(params, batch, held_out):
            value, params = training_step(loss)(params, batch)
            return value, params, pw.accumulate(loss, 2)(params, held_out)

        return step

    for schedule in SCHEDULES:
        check(build, weights(2), BATCH, (BATCH[1], BATCH[0]), schedule=schedule)


def test_one_loop_after_the_other_over_the_same_function():
    def build(*place):
        stages = [on(layer) for on in place]

        def loss(params, batch):
            x, y = batch
            for stage, w in zip(stages, params, strict=True):
                x = stage(w, x)
            return squared_error(x, y)

        step = training_step(loss)

        def steps(params, batch):
            first, params = step(params, batch)
            second, params = step(params, batch)
            return first, second, params

        return steps

    check(build, weights(2), BATCH, schedule="1f1b")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_step_under_jit_that_is_called_several_times(schedule):
    """JAX traces it once; each call is a loop of its own, also where a jit around it is called twice."""

    def build(*place):
        step = jax.jit(mlp(*place))

        @jax.jit
        def two_steps(params, batch):
            first, params = step(params, batch)
            second, params = step(params, batch)
            return first + second, params

        def steps(params, batch):
            before, params = step(params, batch)
            _, params = two_steps(params, batch)
            after, params = two_steps(params, batch)
            return before, after, params

        return steps

    check(build, weights(2), BATCH, schedule=schedule)


@pytest.mark.filterwarnings("ignore:.*nothing is pipelined")
@pytest.mark.parametrize("program_first", [False, True])
def test_a_function_under_jit_in_a_program_and_outside(program_first):
    """JAX keeps its traces; that of a program is a loop, the other one a scan."""
    (on,) = on_slices((1,))
    mean = jax.jit(pw.accumulate(layer, M, reduce="mean"))
    w, x = weights(1)[0], BATCH[0]
    wanted = np.tanh(x @ w).reshape(M, -1, *w.shape[1:]).mean(axis=0)
    program = pw.program(lambda w, x: (mean(w, x), on(layer)(w, x)))
    runs = [lambda: mean(w, x), lambda: program(w, x)[0]]
    for run in reversed(runs) if program_first else runs:
        assert_close(run(), jnp.asarray(wanted))
    assert program.lower(w, x).as_text("imported").count('"pw.loop"') == 1


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_effects_between_and_in_stages(schedule, capsys):
    """What is done for its effect alone is done for each microbatch, wherever it stands."""

    def build(*place):
        first, last = [on(layer) for on in place]
        show = place[1](lambda h: jax.debug.print("placed {}", h.shape))

        def loss(params, batch):
            h = first(params[0], batch[0])
            jax.debug.print("between {} of {}", h.shape, h.sum() * 0)
            show(h)
            return squared_error(last(params[1], h), batch[1])

        return training_step(loss)

    program = pw.program(build(*on_slices((1,), (1,))), schedule=schedule)
    jax.block_until_ready(program(weights(2), BATCH))
    jax.effects_barrier()
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("between") for line in lines) == M
    assert sum(line.startswith("placed") for line in lines) == M


def test_one_microbatch():
    program = check(functools.partial(mlp, count=1), weights(2), BATCH)
    # Forward; forward, backward and update; backward and update.
    assert len(launches(program, weights(2), BATCH)) == 3


def test_as_many_microbatches_as_rows():
    check(functools.partial(mlp, count=16), weights(2), BATCH, schedule="1f1b")


@pytest.mark.filterwarnings("ignore:.*nothing is pipelined")
def test_all_stages_on_one_slice():
    (on,) = on_slices((1,))
    got = pw.program(mlp(on, on, on), schedule="1f1b")(weights(3), BATCH)
    assert_close(got, jax.jit(mlp(jax.jit, jax.jit, jax.jit))(weights(3), BATCH))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_slices_that_share_devices(schedule):
    place = on_slices((1,), (1,), (1,), overlap=True)
    got = pw.program(mlp(*place), schedule=schedule)(weights(3), BATCH)
    assert_close(got, jax.jit(mlp(*[jax.jit] * 3))(weights(3), BATCH))


def test_the_library_step_under_fusion_of_calls():
    check(looped, weights(4), BATCH, schedule="1f1b", fuse=True)


# Slices of several devices.

SHARDED = ([P(None, "model"), P("model", None)], (P("data"), P("data")))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_shardings_of_the_program_reach_the_microbatches(schedule):
    shapes = [(2, 2), (2, 2)]
    program = check(mlp, weights(2), BATCH, shapes=shapes, in_shardings=SHARDED, schedule=schedule)
    _, params = program(weights(2), BATCH)
    for p, spec in zip(params, SHARDED[0], strict=True):
        assert isinstance(p.sharding, NamedSharding)
        assert p.sharding.is_equivalent_to(NamedSharding(p.sharding.mesh, spec), 2)


@pytest.mark.parametrize("shapes", [[(2, 2), (2,)], [(4,), (2, 2)], [(2,), (1,)], [(1,), (4,)]])
def test_slices_of_different_shape(shapes):
    def build(*place):
        batch = P("data")
        stages = [pw_or_jax(on, layer, (None, batch), batch) for on in place]

        def loss(params, batch):
            x, y = batch
            for stage, w in zip(stages, params, strict=True):
                x = stage(w, x)
            return squared_error(x, y)

        return training_step(loss)

    check(build, weights(2), BATCH, shapes=shapes, schedule="1f1b")


def pw_or_jax(on: Place, fun: Fun, in_specs: Any, out_specs: Any) -> Fun:
    """Places a function, with shardings where there is a mesh for them."""
    return on(fun) if on is jax.jit else on(fun, in_shardings=in_specs, out_shardings=out_specs)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "eager"])
@pytest.mark.parametrize("last", [0, 1])
def test_calls_that_read_gradients_of_their_microbatch(schedule: str, last: int):
    def build(*places: Place) -> Fun:
        first, second, behind = places[0](jnp.sin), places[1](jnp.cos), places[last](jnp.tanh)

        def outputs(w: Any, x: Any) -> Any:
            value, gradient = jax.value_and_grad(lambda w: jnp.sum(second(first(w * x))))(w)
            return value, behind(gradient), first(gradient)

        return pw.accumulate(outputs, M, reduce="sum")

    check(build, np.float32(2), array(2 * M), schedule=schedule)


def test_a_barrier_over_a_parameter_and_a_microbatch():
    def build(first: Place, second: Place) -> Fun:
        def outputs(w: Any, x: Any) -> Any:
            w, y = jax.lax.optimization_barrier((w, first(jnp.sin)(x)))
            return w, second(jnp.cos)(y)

        return pw.accumulate(outputs, M, reduce="sum")

    check(build, array(3), array(2 * M))


def test_a_concatenation_without_rows_on_a_sharded_slice():
    (place,) = on_slices((2,))

    def run(x: Any) -> Any:
        return pw.accumulate(place(lambda x: x * 2), 2, reduce="concat", batch_argnums=0)(x)

    assert_close(pw.program(run)(array(0, 4)), jnp.zeros((0, 4)))


def test_concatenations_and_sums_keep_the_sharding_of_the_batch():
    def build(*place):
        first, second = (on(layer) for on in place)

        def outputs(params, x):
            h = first(params[0], x)
            return h, second(params[1], h), h.sum(0)

        return pw.accumulate(outputs, M, reduce=("concat", "concat", "sum"))

    shapes = [(2, 2), (4,)]
    program = check(build, weights(2), BATCH[0], shapes=shapes, in_shardings=(None, P("data")))
    rows, _, _ = program(weights(2), BATCH[0])
    assert rows.sharding.is_equivalent_to(NamedSharding(rows.sharding.mesh, P("data")), 2)

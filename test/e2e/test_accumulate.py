"""Results of `pw.accumulate` in a program: those of a scan over the microbatches, as elsewhere.

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
from check import assert_close, assert_equal
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from models import layer, sgd, squared_error, training_step

import pathways as pw

Fun = Callable[..., Any]
Place = Callable[[Fun], Fun]
Build = Callable[..., Fun]

SCHEDULES = ["program", "gpipe", "1f1b", "interleaved-1f1b", "eager"]
M = 4


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def on_slices(*shapes: tuple[int, ...], **options: Any) -> list[Place]:
    """Returns decorators for functions on slices, whose axes are "data" and, in two dimensions, "model"."""
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice(shape, ("data", "model")[: len(shape)], **options) for shape in shapes]
    return [pw.jit(devices=slice) for slice in slices]


def check(
    build: Build,
    *args: Any,
    shapes: Sequence[tuple[int, ...]] = ((1,), (1,)),
    tolerance: float = 1e-6,
    **options: Any,
) -> pw.Program:
    """Runs a step on slices, and as one module of `jax.jit`; returns the program."""
    program = pw.program(build(*on_slices(*shapes)), **options)
    # First: the program may consume its arguments.
    wanted = jax.jit(build(*[jax.jit] * len(shapes)))(*args)
    assert_close(program(*args), wanted, tolerance)
    return program


def mlp(*place: Place, count: int = M) -> Fun:
    """Returns a training step of a model with one layer on each place."""
    return training_step(squared_error([on(layer) for on in place]), count)


def looped(*place: Place) -> Fun:
    """Returns the same with two layers on each place, which each microbatch visits twice."""
    return mlp(*place, *place)


def error(prediction: jax.Array, target: jax.Array) -> jax.Array:
    return jnp.mean((prediction - target) ** 2)


def weights(count: int, width: int = 8) -> list[np.ndarray]:
    return [array(width, width, seed=n) / np.sqrt(width, dtype=np.float32) for n in range(count)]


BATCH = (array(16, 8, seed=10), array(16, 8, seed=11))


def launches(program: pw.Program, *args: Any) -> list[str]:
    return [line for line in program.lower(*args).as_text().splitlines() if '"pw.launch"' in line]


# Schedules.


@pytest.mark.feature("pipelines", "values")
@pytest.mark.parametrize(
    ("schedule", "stages", "count"),
    [("program", 2, M), ("gpipe", 4, M), ("1f1b", 2, 16), ("interleaved-1f1b", 4, M), ("eager", 4, M)],
)
def test_accumulate_steps_under_each_schedule(schedule, stages, count):
    build = functools.partial(mlp, count=count)
    check(build, weights(stages), BATCH, shapes=[(1,)] * stages, schedule=schedule)


def test_accumulate_steps_in_double_precision():
    with jax.enable_x64(True):
        params, batch = jax.tree.map(np.float64, (weights(2), BATCH))
        program = check(mlp, params, batch, schedule="eager", tolerance=1e-11)
        assert {leaf.dtype for leaf in jax.tree.leaves(program(params, batch))} == {np.dtype("float64")}


def test_accumulate_bits_same_under_all_schedules():
    """Two stages on each slice."""
    place = on_slices((1,), (1,))
    results = [pw.program(looped(*place), schedule=name)(weights(4), BATCH) for name in SCHEDULES]
    assert_close(results[0], jax.jit(looped(jax.jit, jax.jit))(weights(4), BATCH))
    for result in results[1:]:
        assert_equal(result, results[0])


def test_accumulate_without_gradients():
    def build(*place):
        first, second = (on(layer) for on in place)

        def predict(params, x):
            return second(params[1], first(params[0], x))

        return pw.accumulate(predict, M, reduce="concat")

    for schedule in SCHEDULES:
        check(build, weights(2), BATCH[0], schedule=schedule)


# Outside of programs, where `pw.accumulate` is a scan: the reference of all other tests.


def test_accumulate_as_scan_agrees_with_whole_batch():
    loss = squared_error([layer, layer])
    value, gradients = jax.value_and_grad(loss)(weights(2), BATCH)
    wanted = value, sgd(weights(2), gradients)
    for count in (1, 2, 16):
        step = training_step(loss, count)
        assert_close(step(weights(2), BATCH), wanted)
        assert_close(jax.jit(step)(weights(2), BATCH), wanted)


def test_accumulate_as_scan_under_vmap():
    total = pw.accumulate(
        lambda w, x: {"sum": w * x.sum(), "rows": x}, 2, reduce={"sum": "sum", "rows": "concat"}
    )
    got = jax.vmap(total, in_axes=(0, None))(jnp.arange(3.0), jnp.arange(4.0))
    assert_close(got, {"sum": 6 * jnp.arange(3.0), "rows": jnp.tile(jnp.arange(4.0), (3, 1))}, 0)


def test_accumulate_traces_function_once():
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


def test_accumulate_inside_placed_function_is_scan():
    def build(first, second):
        count = first(pw.accumulate(lambda w, x: layer(w, x).sum(), M, reduce="sum"))
        return lambda w, x: second(jnp.sin)(count(w, x))

    program = check(build, weights(1)[0], BATCH[0])
    assert len(launches(program, weights(1)[0], BATCH[0])) == 2


# Reductions.


def test_accumulate_reduces_auxiliary_results():
    def build(*place):
        first, second = (on(layer) for on in place)

        def loss(params, batch):
            x, y = batch
            h = first(params[0], x)
            prediction = second(params[1], h)
            right = jnp.sum((prediction > 0) == (y > 0), dtype=jnp.int32)
            return error(prediction, y), {"right": right, "hidden": h, "prediction": prediction}

        def step(params, batch):
            kinds = {"right": "sum", "hidden": "concat", "prediction": "concat"}
            reduce = (("mean", kinds), "mean")
            (value, aux), gradients = pw.accumulate(jax.value_and_grad(loss, has_aux=True), M, reduce=reduce)(
                params, batch
            )
            return value, aux, sgd(params, gradients)

        return step

    program = check(build, weights(2), BATCH, schedule="1f1b")
    _, aux, _ = program(weights(2), BATCH)
    assert aux["right"].dtype == jnp.int32
    assert aux["hidden"].shape == (16, 8)


def test_accumulate_reduces_results_of_no_placed_call():
    """The microbatch, an unplaced operation on it, a parameter, a constant: all are reduced alike."""

    def build(*place):
        first, second = (on(layer) for on in place)

        def outputs(w, x):
            h = first(w, x)
            stages = {"h": h, "rest": [second(w, h)]}
            return {"stages": stages, "x": x, "glue": jnp.sin(x), "w": w, "one": jnp.ones(3)}

        def step(w, x):
            return [pw.accumulate(outputs, M, reduce=kind)(w, x) for kind in ("sum", "concat", "mean")]

        return step

    check(build, weights(1)[0], BATCH[0])


def test_accumulate_reduces_result_returned_twice():
    def build(*place):
        first, second = (on(layer) for on in place)

        def outputs(params, x):
            h = first(params[0], x)
            return h, h, second(params[1], h).sum()

        return pw.accumulate(outputs, M, reduce=("sum", "concat", "sum"))

    check(build, weights(2), BATCH[0], schedule="gpipe")


def test_accumulate_reduces_integers():
    def build(first, second):
        shift = first(lambda n, x: x + n)
        clip = second(lambda x: jnp.minimum(x, 7))

        def outputs(n, x):
            y = clip(shift(n, x))
            return y.sum(), y, y > 3

        return pw.accumulate(outputs, M, reduce=("sum", "concat", "concat"))

    check(build, np.int32(2), np.arange(16, dtype=np.int32), tolerance=0)


@pytest.mark.parametrize("count", [1, 2])
def test_accumulate_keeps_weak_types(count):
    """A Python scalar takes on the dtype of the value that it is combined with."""
    kinds = ("mean", "sum", "concat")

    def build(place, _):
        weak = place(lambda x: (x.sum(), jnp.broadcast_to(2.0, 3)))
        return pw.accumulate(lambda x: (weak(x)[1],) * 3, count, reduce=kinds, batch_argnums=0)

    check(build, BATCH[0])


def test_accumulate_concatenates_empty_results():
    batch = np.ones((4, 0), np.float32)

    def both(x):
        return x * 2, x.T

    (on_s0,) = on_slices((1,))
    placed = on_s0(both)
    inside = pw.program(lambda x: pw.accumulate(placed, 2, reduce="concat", batch_argnums=0)(x))(batch)
    outside = pw.accumulate(both, 2, reduce="concat", batch_argnums=0)(batch)
    assert [x.shape for x in inside] == [x.shape for x in outside] == [(4, 0), (0, 2)]


@pytest.mark.filterwarnings("ignore:.*nothing is pipelined")
@pytest.mark.parametrize("argnums", [(0, -1), [1]])
def test_accumulate_splits_arguments_at_positions(argnums):
    def build(first, second):
        f, g = first(lambda a, b: (a * b.sum()).sum()), second(jnp.cos)
        return pw.accumulate(lambda a, b, c: g(f(a, b)) + c.sum(), 2, batch_argnums=argnums)

    check(build, array(4), array(4, 3, seed=1), array(4, 2, seed=2))


def test_accumulate_shares_arguments_by_name():
    def build(first, second):
        f, g = first(layer), second(jnp.cos)
        total = pw.accumulate(lambda w, x, scale: g(f(w, x)).sum() * scale, M)
        return lambda w, x, scale: total(w, x, scale=scale)

    check(build, weights(1)[0], BATCH[0], np.float32(3))


# Models.


def test_accumulate_checkpointed_stages():
    def build(*place):
        stages = [jax.checkpoint(on(lambda w, x: layer(w, layer(w, x)))) for on in place]
        return training_step(squared_error(stages), M)

    check(build, weights(2), BATCH, schedule="gpipe")


def test_accumulate_checkpointed_loss():
    def build(*place):
        return training_step(jax.checkpoint(squared_error([on(layer) for on in place])), M)

    check(build, weights(2), BATCH, schedule="1f1b")


def test_accumulate_gradients_alone_of_checkpointed_loss():
    """The only forward calls left are those that are repeated; these are the stages."""

    def build(*place):
        stages = [on(layer) for on in (*place, *place)]

        @jax.checkpoint
        def loss(params, batch):
            x, y = batch
            for stage, w in zip(stages, params, strict=True):
                x = jnp.sin(stage(w, x))
            return error(x, y)

        def step(params, batch):
            return sgd(params, pw.accumulate(jax.grad(loss), M)(params, batch))

        return step

    program = check(build, weights(4), BATCH, schedule="1f1b")
    text = program.lower(weights(4), BATCH).as_text("imported")
    assert {int(n) for n in re.findall(r"stage = (\d+)", text)} == {0, 1, 2, 3}


def test_accumulate_splits_key_for_each_microbatch():
    def dropout(w, x, key):
        h = layer(w, x)
        return jnp.where(jax.random.bernoulli(key, 0.5, h.shape), h, 0)

    def build(*place):
        first, second = (on(dropout) for on in place)

        def loss(params, batch):
            x, y, keys = batch
            one, two = jax.random.split(keys[0])
            return error(second(params[1], first(params[0], x, one), two), y)

        def step(params, batch, key):
            return training_step(loss, M)(params, (*batch, jax.random.split(key, M)))

        return step

    check(build, weights(2), BATCH, jax.random.key(0), schedule="1f1b")


def test_accumulate_concatenates_keys():
    def build(first, second):
        noise = first(jax.vmap(lambda key: jax.random.normal(key, (3,))))
        fold = second(jax.vmap(lambda key: jax.random.fold_in(key, 1)))
        return pw.accumulate(lambda keys: (noise(keys), fold(keys)), 2, reduce="concat", batch_argnums=0)

    check(build, jax.random.split(jax.random.key(1), 6))


def test_accumulate_gradients_of_other_dtype():
    def build(*place):
        loss = squared_error([on(layer) for on in place])

        def gradients(params, batch):
            value, found = jax.value_and_grad(loss)(params, batch)
            return value, jax.tree.map(lambda g: g.astype(jnp.bfloat16), found)

        def step(params, batch):
            value, found = pw.accumulate(gradients, M)(params, batch)
            return value, found, sgd(params, found)

        return step

    # A sum of numbers with 8 bits.
    program = check(build, weights(2), BATCH, tolerance=2**-8)
    _, found, params = program(weights(2), BATCH)
    assert {g.dtype for g in found} == {jnp.dtype(jnp.bfloat16)}
    assert {p.dtype for p in params} == {jnp.dtype(jnp.float32)}


def test_accumulate_reads_weights_cast_before_it():
    def build(*place):
        first, second = (on(layer) for on in place)

        def loss(half, batch):
            x, y = batch
            return error(second(half[1], first(half[0], x.astype(jnp.bfloat16))).astype(y.dtype), y)

        def step(params, batch):
            half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
            value, gradients = pw.accumulate(jax.value_and_grad(loss), M)(half, batch)
            return value, sgd(params, gradients)

        return step

    check(build, weights(2), BATCH, tolerance=2**-8, schedule="1f1b")


def test_accumulate_runs_calls_on_parameters_once():
    def normalise(w):
        return w / jnp.linalg.norm(w)

    def build(*place):
        prepare = [on(normalise) for on in place]
        stages = [on(layer) for on in place]

        def loss(params, batch):
            x, y = batch
            for f, stage, w in zip(prepare, stages, params, strict=True):
                x = stage(f(w), x)
            return error(x, y)

        return training_step(loss, M)

    program = check(build, weights(2), BATCH, schedule="1f1b")
    calls = [line for line in launches(program, weights(2), BATCH) if "callee = @normalise" in line]
    assert [line.count('kind = "fwd"') for line in calls if "loop" not in line] == [1, 1]
    assert not any('kind = "fwd"' in line for line in calls if "loop" in line)


def test_accumulate_donates_batch():
    step = pw.program(mlp(*on_slices((1,), (1,))), donate_argnums=1)
    batch = jax.tree.map(jnp.array, BATCH)
    with pytest.warns(pw.PathwaysWarning, match=r"donated buffers were not usable: batch\[0\]"):
        results = step(weights(2), batch)
    assert_close(results, jax.jit(mlp(jax.jit, jax.jit))(weights(2), BATCH))
    assert all(leaf.is_deleted() for leaf in batch)


def test_accumulate_parameters_in_trees():
    def block(p, x):
        return x + layer(p["w"], x) + p["b"]

    def build(*place):
        stages = [on(block) for on in place for _ in range(2)]

        def loss(params, batch):
            x, y = batch["x"], batch["y"]
            for n, stage in zip(names, stages, strict=True):
                x = stage(params["layers"][n], x)
            return error(x * params["scale"][0], y)

        return training_step(loss, M)

    # JAX sorts them otherwise.
    names = ["layer_1", "layer_2", "layer_10", "layer_11"]
    params = {
        "layers": {n: {"w": w, "b": array(8)} for n, w in zip(names, weights(4), strict=True)},
        "scale": [np.float32(0.1)],
    }
    check(build, params, dict(zip("xy", BATCH, strict=True)), schedule="1f1b")


def test_accumulate_skip_connections():
    def build(*place):
        f, g, h = (on(layer) for on in place)

        def loss(params, batch):
            x, y = batch
            a = f(params[0], x)
            b = g(params[1], a) + a
            return error(h(params[2], b) + jnp.sin(a) * x, y)

        return training_step(loss, M)

    check(build, weights(3), BATCH, shapes=[(1,)] * 3, schedule="gpipe")


def test_accumulate_sends_trees_between_stages():
    def split(w, x):
        h = layer(w, x)
        return {"gate": jax.nn.sigmoid(h[:, :4]), "value": h[:, 4:], "mask": h[:, 0] > 0}

    def join(w, h, scale):
        return h["mask"][:, None] * jnp.tile(h["gate"] * h["value"], 2) @ w * scale

    def build(*place):
        f, g = place[0](split), place[1](join)

        def loss(params, batch):
            x, y = batch
            return error(g(params[1], f(params[0], x), jnp.mean(x)), y)

        return training_step(loss, M)

    check(build, weights(2), BATCH, schedule="1f1b")


def test_accumulate_tied_embedding():
    def build(first, second):
        embed, predict = first(lambda table, x: table[x]), second(lambda table, h: h @ table.T)
        middle = second(layer)

        def loss(params, batch):
            tokens, targets = batch
            logits = predict(params["table"], middle(params["w"], embed(params["table"], tokens)))
            return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, targets))

        return training_step(loss, M)

    tokens = np.random.default_rng(0).integers(0, 20, size=(2, 16), dtype=np.int32)
    params = {"table": array(20, 8), "w": weights(1)[0]}
    check(build, params, tuple(tokens), schedule="interleaved-1f1b")


def test_accumulate_stages_of_different_size():
    def build(first, second):
        stages = [first(layer), second(layer), second(layer), second(lambda w, x: x @ w)]
        return training_step(squared_error(stages), M)

    params = [array(8, 4), array(4, 32, seed=1), array(32, 16, seed=2), array(16, 8, seed=3)]
    check(build, params, BATCH, schedule="1f1b", tolerance=2e-6)


def test_accumulate_adamw_donates_its_state():
    optimizer = optax.chain(optax.clip_by_global_norm(0.01), optax.adamw(1e-2))

    def build(*place):
        loss = squared_error([on(layer) for on in place])

        def step(params, state, batch):
            value, gradients = pw.accumulate(jax.value_and_grad(loss), M)(params, batch)
            updates, state = optimizer.update(gradients, state, params)
            return value, optax.apply_updates(params, updates), state

        return step

    params = jax.tree.map(jnp.array, weights(2))
    state, reference_state = optimizer.init(params), optimizer.init(params)
    step = pw.program(build(*on_slices((1,), (1,))), schedule="1f1b", donate_argnums=(0, 1))
    reference, wanted = jax.jit(build(jax.jit, jax.jit)), weights(2)
    for _ in range(3):
        before = params, state
        value, params, state = step(*before, BATCH)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
        loss, wanted, reference_state = reference(wanted, reference_state, BATCH)
        assert_close((value, params, state), (loss, wanted, reference_state))


def test_accumulate_several_times_in_a_program():
    """Two steps of training, then evaluation with the new parameters, over microbatches of another size."""

    def build(*place):
        loss = squared_error([on(layer) for on in place])
        step = training_step(loss, M)

        def steps(params, batch, held_out):
            first, params = step(params, batch)
            second, params = step(params, batch)
            return first, second, params, pw.accumulate(loss, 2)(params, held_out)

        return steps

    check(build, weights(2), BATCH, (BATCH[1], BATCH[0]), schedule="eager")


def test_accumulate_under_jit_called_several_times():
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

    check(build, weights(2), BATCH, schedule="program")


@pytest.mark.filterwarnings("ignore:.*nothing is pipelined")
@pytest.mark.parametrize("program_first", [False, True])
def test_accumulate_under_jit_inside_and_outside_program(program_first):
    """JAX caches its traces; the trace of a program is a loop, the other one a scan."""
    (on,) = on_slices((1,))
    mean = jax.jit(pw.accumulate(layer, M, reduce="mean"))
    w, x = weights(1)[0], BATCH[0]
    wanted = np.tanh(x @ w).reshape(M, -1, *w.shape[1:]).mean(axis=0)
    program = pw.program(lambda w, x: (mean(w, x), on(layer)(w, x)))
    runs = [lambda: mean(w, x), lambda: program(w, x)[0]]
    for run in reversed(runs) if program_first else runs:
        assert_close(run(), jnp.asarray(wanted))
    assert program.lower(w, x).as_text("imported").count('"pw.loop"') == 1


def test_accumulate_repeats_effects_for_each_microbatch(capsys):
    """Effects run for each microbatch, inside and outside of placed functions."""

    def build(*place):
        first, last = [on(layer) for on in place]
        show = place[1](lambda h: jax.debug.print("placed {}", h.shape))

        def loss(params, batch):
            h = first(params[0], batch[0])
            jax.debug.print("between {} of {}", h.shape, h.sum() * 0)
            show(h)
            return error(last(params[1], h), batch[1])

        return training_step(loss, M)

    program = pw.program(build(*on_slices((1,), (1,))), schedule="gpipe")
    jax.block_until_ready(program(weights(2), BATCH))
    jax.effects_barrier()
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("between") for line in lines) == M
    assert sum(line.startswith("placed") for line in lines) == M


def test_accumulate_one_microbatch():
    program = check(functools.partial(mlp, count=1), weights(2), BATCH)
    # Forward; forward, backward and update; backward and update.
    assert len(launches(program, weights(2), BATCH)) == 3


@pytest.mark.filterwarnings("ignore:.*nothing is pipelined")
def test_accumulate_all_stages_on_one_slice():
    (on,) = on_slices((1,))
    got = pw.program(mlp(on, on, on), schedule="1f1b")(weights(3), BATCH)
    assert_close(got, jax.jit(mlp(jax.jit, jax.jit, jax.jit))(weights(3), BATCH))


@pytest.mark.feature("overlap", "values")
def test_accumulate_slices_that_share_devices():
    place = on_slices((1,), (1,), (1,), overlap=True)
    got = pw.program(mlp(*place), schedule="eager")(weights(3), BATCH)
    assert_close(got, jax.jit(mlp(*[jax.jit] * 3))(weights(3), BATCH))


def test_accumulate_with_fusion():
    check(looped, weights(4), BATCH, schedule="1f1b", fuse=True)


# Slices of several devices.

SHARDED = ([P(None, "model"), P("model", None)], (P("data"), P("data")))


def test_accumulate_shards_microbatches_as_program_says():
    shapes = [(2, 2), (2, 2)]
    program = check(mlp, weights(2), BATCH, shapes=shapes, in_shardings=SHARDED, schedule="1f1b")
    _, params = program(weights(2), BATCH)
    for p, spec in zip(params, SHARDED[0], strict=True):
        assert isinstance(p.sharding, NamedSharding)
        assert p.sharding.is_equivalent_to(NamedSharding(p.sharding.mesh, spec), 2)


@pytest.mark.parametrize("shapes", [[(1,), (2, 2), (2,)], [(4,), (2, 2)]])
def test_accumulate_slices_of_different_shape(shapes):
    def build(*place):
        batch = P("data")
        stages = [pw_or_jax(on, layer, (None, batch), batch) for on in place]
        return training_step(squared_error(stages), M)

    check(build, weights(len(shapes)), BATCH, shapes=shapes, schedule="1f1b")


def pw_or_jax(on: Place, fun: Fun, in_specs: Any, out_specs: Any) -> Fun:
    """Places a function, with shardings where there is a mesh for them."""
    return on(fun) if on is jax.jit else on(fun, in_shardings=in_specs, out_shardings=out_specs)


@pytest.mark.parametrize(("schedule", "last"), [("1f1b", 0), ("eager", 1)])
def test_accumulate_calls_that_read_gradients(schedule: str, last: int):
    def build(*places: Place) -> Fun:
        first, second, after = places[0](jnp.sin), places[1](jnp.cos), places[last](jnp.tanh)

        def outputs(w: Any, x: Any) -> Any:
            value, gradient = jax.value_and_grad(lambda w: jnp.sum(second(first(w * x))))(w)
            return value, after(gradient), first(gradient)

        return pw.accumulate(outputs, M, reduce="sum")

    check(build, np.float32(2), array(2 * M), schedule=schedule)


def test_accumulate_barrier_over_parameter_and_microbatch():
    def build(first: Place, second: Place) -> Fun:
        def outputs(w: Any, x: Any) -> Any:
            w, y = jax.lax.optimization_barrier((w, first(jnp.sin)(x)))
            return w, second(jnp.cos)(y)

        return pw.accumulate(outputs, M, reduce="sum")

    check(build, array(3), array(2 * M))


def test_accumulate_concatenates_no_rows_on_sharded_slice():
    (place,) = on_slices((2,))

    def run(x: Any) -> Any:
        return pw.accumulate(place(lambda x: x * 2), 2, reduce="concat", batch_argnums=0)(x)

    assert_close(pw.program(run)(array(0, 4)), jnp.zeros((0, 4)))


@pytest.mark.parametrize("count", [1, 2])
def test_accumulate_batch_read_by_slices_of_different_shape(count):
    """The batch is whole on each device of all of them, though functions on one of them split it."""

    def build(first, second):
        rows = pw_or_jax(first, jnp.tanh, (P("data"),), P("data"))
        columns = pw_or_jax(second, jnp.sin, (P(None, "model"),), P(None, "model"))
        return pw.accumulate(lambda x: (rows(x), columns(x)), count, reduce="concat", batch_argnums=0)

    check(build, BATCH[0], shapes=[(2,), (2, 2)])


def test_accumulate_results_keep_sharding_of_batch():
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

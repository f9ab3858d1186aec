"""Exchanges of blocks between slices: the values and gradients of plain JAX."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check import assert_close, assert_equal
from jax.experimental import jet
from jax.sharding import PartitionSpec as P
from models import mixture_of_experts, place_on
from on_hosts import refused

import pathways as pw
from pathways.runtime.plan.plan import Transfer

WIDTH = 4


def exchanged(blocks: Sequence[Any]) -> list[Any]:
    """Exchanges blocks in plain JAX."""
    return list(jnp.stack(blocks).swapaxes(0, 1))


def slices_of(count: int, *shapes: tuple[int, ...], replicas: int = 1) -> list[Any]:
    devices = pw.make_virtual_device_set(replicas=replicas)
    axes = "xyz"
    return [devices.add_slice(shape, tuple(axes[: len(shape)])) for shape in (shapes or [(1,)] * count)]


def arrays(count: int, *shape: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for _ in range(count)]


def inputs(count: int, tokens: int) -> tuple[Any, Any]:
    """Returns the parameters of a layer of experts, and the tokens of each slice."""
    params = arrays(count, WIDTH, count), arrays(count, WIDTH, WIDTH, seed=1)
    return params, arrays(count, tokens, WIDTH, seed=2)


def loss_of(layer: Callable[..., Any], layers: int = 1) -> Callable[..., Any]:
    """Returns the loss of some layers of experts, all with the same parameters."""

    def loss(params: Any, x: list[Any]) -> Any:
        total = 0.0
        for _ in range(layers):
            x, balance = layer(params, x)
            total += 0.01 * balance
        return total + sum((tokens**2).mean() for tokens in x)

    return loss


def assert_as_jax(
    slices: Sequence[Any],
    of_loss: Callable[[Callable[..., Any]], Callable[..., Any]] = jax.value_and_grad,
    tokens: int = 8,
    layers: int = 1,
    **options: Any,
) -> Any:
    """Checks a function of the loss of experts on slices against plain JAX; returns the program."""
    params, x = inputs(len(slices), tokens)
    program = pw.program(of_loss(loss_of(mixture_of_experts(slices, pw.all_to_all), layers)), **options)
    expected = jax.jit(of_loss(loss_of(mixture_of_experts(len(slices), exchanged), layers)))
    assert_close(program(params, x), expected(params, x), 1e-5)
    return program


def in_microbatches(count: int) -> Callable[..., Any]:
    return lambda loss: lambda params, x: pw.accumulate(jax.value_and_grad(loss), count)(params, x)


@pytest.mark.feature("experts", "values")
@pytest.mark.parametrize("count", [2, 3, 4])
def test_experts_on_slices_train_as_in_jax(count: int) -> None:
    program = assert_as_jax(slices_of(count))
    # Two exchanges, and the transpose of one; each slice sends to all others, whatever is routed.
    steps = program.executables[0].plan.steps
    # Besides them two scalars of each slice are summed on the first one.
    assert sum(isinstance(step, Transfer) for step in steps) == (3 * count + 2) * (count - 1)


@pytest.mark.slow
@pytest.mark.parametrize("count", [5, 6, 7, 8])
def test_experts_on_many_slices_train_as_in_jax(count: int) -> None:
    assert_as_jax(slices_of(count))


def test_exchange_outside_of_programs() -> None:
    blocks = arrays(3, 3, 2)
    assert_equal(pw.all_to_all(blocks), exchanged(blocks))
    assert_equal(jax.jit(pw.all_to_all)(blocks), exchanged(blocks))
    (only,) = pw.all_to_all([np.ones((1, 2), np.float32)])
    assert_equal(only, jnp.ones((1, 2)))
    on_slices = [one(x) for one, x in zip(place_on(slices_of(2), jnp.tanh), arrays(2, 2, 3), strict=True)]
    with refused(ValueError, "pw.all_to_all: the blocks are on different slices", "@pw.program"):
        pw.all_to_all(on_slices)


@pytest.mark.parametrize(
    ("schedule", "microbatches"),
    [
        ("1f1b", 8),
        ("gpipe", 4),
        ("eager", 4),
        ("interleaved-1f1b", 4),
        ("looped-bfs", 4),
        ("interleaved-zb", 4),
        ("search(iterations=20)", 2),
        ("1f1b(times=units, latency=1, bandwidth=100)", 4),
        ("eager(max-bytes=100000)", 4),
    ],
)
def test_experts_in_pipelines(schedule: str, microbatches: int) -> None:
    assert_as_jax(slices_of(2), in_microbatches(microbatches), 8 * microbatches, schedule=schedule)


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-h2", "zb-v"])
def test_schedules_of_one_stage_per_slice_are_refused(schedule: str) -> None:
    with refused(pw.ProgramError, f"cannot be scheduled by '{schedule}'"):
        assert_as_jax(slices_of(2), in_microbatches(2), 16, schedule=schedule)


@pytest.mark.parametrize("schedule", [None, "1f1b"])
def test_experts_of_replicas_stay_within_them(schedule: str | None) -> None:
    assert_as_jax(slices_of(2, replicas=2), in_microbatches(4), 32, schedule=schedule)


def test_experts_are_recomputed() -> None:
    """Under `jax.checkpoint` the backward repeats both exchanges."""

    def of_loss(loss: Callable[..., Any]) -> Callable[..., Any]:
        return jax.value_and_grad(jax.checkpoint(loss))

    assert_as_jax(slices_of(2), of_loss)
    assert_as_jax(slices_of(2), lambda loss: in_microbatches(2)(jax.checkpoint(loss)), 16, schedule="1f1b")


@pytest.mark.parametrize(
    "shapes", [((2,), (2,)), ((2,), (1,)), ((4,), (2,), (2, 1))], ids=["equal", "unlike", "three"]
)
def test_exchange_between_meshes(shapes: Sequence[tuple[int, ...]]) -> None:
    """All but the leading dimension of a block may be split, on each slice in another way."""
    count = len(shapes)
    slices = slices_of(count, *shapes)
    blocks = arrays(count, count, 8, 4)

    def twice(x: Any) -> Any:
        return 2 * jnp.sin(x)

    def run(functions: Sequence[Callable[..., Any]], exchange: Callable[..., Any], blocks: Any) -> Any:
        def total(blocks: Any) -> Any:
            received = exchange([one(x) for one, x in zip(functions, blocks, strict=True)])
            return sum((one(x) ** 2).sum() for one, x in zip(functions, received, strict=True)), received

        return jax.value_and_grad(total, has_aux=True)(blocks)

    for spec in (P(None, "x"), P(None, None, "x"), P()):
        placed = place_on(slices, twice, in_shardings=spec, out_shardings=spec)
        got = pw.program(lambda blocks, f=placed: run(f, pw.all_to_all, blocks))(blocks)
        assert_close(got, jax.jit(lambda blocks: run([twice] * count, exchanged, blocks))(blocks), 1e-6)


def test_exchange_of_blocks_that_devices_share() -> None:
    """Blocks that are split by slice over devices are gathered first."""
    slices = slices_of(2, (2,), (2,))
    blocks = arrays(2, 2, 4)
    placed = place_on(slices, jnp.sin, in_shardings=P("x"), out_shardings=P("x"))
    program = pw.program(lambda x: pw.all_to_all([one(b) for one, b in zip(placed, x, strict=True)]))
    assert_close(program(blocks), exchanged(jnp.sin(jnp.stack(blocks))))


def test_exchange_under_transformations() -> None:
    """`jvp`, `jet`, `vmap`, second derivatives, and some blocks that nothing reads."""
    ones = place_on(slices_of(2), jnp.sin)
    blocks = arrays(2, 2, 3)

    def value(functions: Any, exchange: Any, blocks: Any) -> Any:
        received = exchange([one(x) for one, x in zip(functions, blocks, strict=True)])
        return (received[0] ** 3).sum() + 2 * received[1][0].sum()

    def both(check: Callable[[Callable[..., Any]], Callable[..., Any]], *args: Any) -> None:
        ours = check(functools.partial(value, ones, pw.all_to_all))
        theirs = check(functools.partial(value, [jnp.sin] * 2, exchanged))
        assert_close(pw.program(ours)(*args), jax.jit(theirs)(*args), 1e-5)

    both(jax.grad, blocks)
    both(lambda f: lambda x: jax.jvp(f, (x,), (x,)), blocks)
    both(lambda f: lambda x: jax.jvp(jax.grad(f), (x,), (x,)), blocks)
    both(lambda f: lambda x: jet.jet(lambda *x: f(x), x, [[b, b / 2] for b in x]), blocks)
    both(lambda f: jax.vmap(jax.value_and_grad(f)), [np.stack([b, -b]) for b in blocks])
    both(lambda f: jax.vmap(f, in_axes=([0, None],)), [np.stack([blocks[0], -blocks[0]]), blocks[1]])
    both(lambda f: jax.grad(lambda x: (sum(g.sum() for g in jax.grad(f)(x))) ** 2), blocks)


def test_exchange_in_loops_and_branches() -> None:
    """A scan over layers, a loop whose end depends on values, and a condition."""
    slices = slices_of(2)
    layer, plain = mixture_of_experts(slices, pw.all_to_all), mixture_of_experts(2, exchanged)
    params, x = inputs(2, 8)
    stacked = jax.tree.map(lambda p: jnp.stack([p, 2 * p, p / 2]), params)

    def scanned(layer: Any, stacked: Any, x: Any) -> Any:
        def body(x: Any, params: Any) -> Any:
            return layer(params, x)

        def loss(stacked: Any) -> Any:
            last, balance = jax.lax.scan(body, x, stacked)
            return sum((tokens**2).mean() for tokens in last) + balance.sum()

        return jax.value_and_grad(loss)(stacked)

    def repeated(layer: Any, params: Any, x: Any) -> Any:
        def body(x: Any) -> Any:
            return layer(params, x)[0]

        return jax.lax.while_loop(lambda x: sum((tokens**2).sum() for tokens in x) < 1000, body, x)

    def chosen(layer: Any, params: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            taken = jax.lax.cond(x[0][0, 0] > 0, lambda: layer(params, x)[0], lambda: x)
            return sum((tokens**2).mean() for tokens in taken)

        return jax.value_and_grad(loss)(params)

    for function, args in ((scanned, (stacked, x)), (repeated, (params, x)), (chosen, (params, x))):
        got = pw.program(functools.partial(function, layer))(*args)
        assert_close(got, jax.jit(functools.partial(function, plain))(*args), 1e-5)
    negative = [-abs(tokens) for tokens in x]
    got = pw.program(functools.partial(chosen, layer))(params, negative)
    assert_close(got, jax.jit(functools.partial(chosen, plain))(params, negative), 1e-5)


def test_exchange_of_slices_that_share_devices() -> None:
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice((2,), ("x",), overlap=True) for _ in range(2)]
    assert_as_jax(slices, in_microbatches(2), 16, schedule="1f1b")


def test_exchange_of_arguments_on_slices() -> None:
    """Without placed calls, blocks are on the slices of the arguments."""
    blocks = arrays(2, 2, 3)
    placed = [one(b) for one, b in zip(place_on(slices_of(2), jnp.sin), blocks, strict=True)]
    assert_close(pw.program(lambda blocks: pw.all_to_all(blocks))(placed), exchanged([*map(jnp.sin, blocks)]))


def test_gradients_of_exchanges_find_their_slices() -> None:
    """JAX traces a function once for two pairs of slices, and one cotangent is that of two results."""
    blocks = arrays(4, 2, 3)

    def loss_with(functions: Sequence[Callable[..., Any]], exchange: Callable[..., Any]) -> Any:
        once = jax.checkpoint(lambda *blocks: exchange(blocks))

        def loss(blocks: Any) -> Any:
            sent = [one(b) for one, b in zip(functions, blocks, strict=True)]
            received = [*once(*sent[:2]), *once(*sent[2:])]
            return sum(functions[n](received[n] + received[n + 1]).sum() for n in (0, 2))

        return jax.value_and_grad(loss)

    program = pw.program(loss_with(place_on(slices_of(4), jnp.sin), pw.all_to_all))
    assert_close(program(blocks), jax.jit(loss_with([jnp.sin] * 4, exchanged))(blocks), 1e-5)


@pytest.mark.feature("experts", "error")
def test_bad_blocks_are_refused() -> None:
    first, second = slices_of(2)
    on_first, on_second = (pw.jit(jnp.sin, devices=s) for s in (first, second))
    block = np.ones((2, 3), np.float32)

    def call(*blocks: Callable[[Any], Any]) -> None:
        pw.program(lambda x: pw.all_to_all([b(x) for b in blocks])).lower(block)

    with refused(TypeError, "pw.all_to_all expects a list of arrays, one for each slice, got ArrayImpl"):
        pw.all_to_all(jnp.ones((2, 2)))
    dtypes = f"blocks[1] on @{second.name} has dtype int32, but blocks[0] float32"
    with refused(TypeError, dtypes, "test_all_to_all.py"):
        call(on_first, lambda x: on_second(x).astype(int))
    shapes = f"blocks[1] on @{second.name} has shape (2, 2), but blocks[0] (2, 3)"
    with refused(ValueError, shapes, "test_all_to_all.py"):
        call(on_first, lambda x: on_second(x[:, 1:]))

    def loss(x: Any) -> Any:
        return sum(map(jnp.sum, pw.all_to_all([on_first(x), jnp.sin(on_second(x[:, 1:]))])))

    for transformed in (jax.grad(loss), lambda x: jax.vmap(loss)(x[None])):
        with refused(ValueError, shapes):
            pw.program(transformed).lower(block)
    with refused(ValueError, "blocks of shape (1, 3) for 2 slices", "must be 2", "test_all_to_all.py"):
        call(lambda x: on_first(x[1:]), lambda x: on_second(x[1:]))
    with refused(ValueError, f"exchanges block 1 of type tensor<2x3xf32> on @{first.name}, where", ".py:"):
        call(on_first, on_first)
    with refused(ValueError, "exchanges block 1 of type tensor<2x3xf32>, which is on no slice", "pw.jit"):
        call(on_first, lambda x: 2 * x)
    with refused(ValueError, f"exchanges block 0 of type tensor<2x3xf32>, which is on @{first.name} and"):
        call(lambda x: jnp.where(x[0, 0] > 0, on_first(x), on_second(x)), on_second)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("count", [2, 4])
def test_experts_over_slices_learn_as_over_devices(run_example: Any, count: int) -> None:
    """The example drops tokens, and compares with `jax.shard_map` on one slice."""
    steps = re.findall(
        r"loss (\S+) over slices, (\S+) over", run_example("moe.py", f"--slices={count}").output
    )
    losses = np.array(steps, float)
    assert len(losses) == 5
    assert_close(losses[:, 0], losses[:, 1], 1e-5)
    assert losses[-1, 0] < losses[0, 0]


@pytest.mark.process
def test_experts_in_a_bundle(tmp_path: Any) -> None:
    loss = jax.value_and_grad(loss_of(mixture_of_experts(slices_of(2), pw.all_to_all)))
    params, x = inputs(2, 8)
    program = pw.program(loss)
    program.lower(params, x).save(tmp_path / "experts.pw")
    assert_equal(pw.load(tmp_path / "experts.pw")(params, x), program(params, x))

"""Schedules that cut backwards in halves give what `jax.jit` gives, and what other schedules give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import pathways as pw

HALVED = ["zb-h1", "zb-h2"]
M = 6


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def places(count: int) -> list[Any]:
    """What puts a function on each of some slices."""
    devices = pw.make_virtual_device_set()
    return [pw.jit(devices=devices.add_slice((1,), ("x",))) for _ in range(count)]


def dense(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w["w"] + w["b"])


def block(w: Any, x: jax.Array) -> jax.Array:
    """A normalisation, two products and a bias: gradients of sums beside gradients of products."""
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    h = (x - mean) * jax.lax.rsqrt(variance + 1e-5) * w["scale"]
    return x + jax.nn.gelu(h @ w["w"] + w["b"]) @ w["w"].T


def scanned(w: Any, x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda x, w: (x + dense(w, x), None), x, w)[0]


def scanned_again(w: Any, x: jax.Array) -> jax.Array:
    """A scan whose body is repeated in the backward."""
    body = jax.checkpoint(lambda x, w: (x + block(w, x), None))
    return jax.lax.scan(body, x, w)[0]


def scans_inside(w: Any, x: jax.Array) -> jax.Array:
    """A scan in a scan, with a weight that all turns share."""
    shared = jax.tree.map(lambda a: a[0], w)

    def turn(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        x = jax.lax.fori_loop(0, 2, lambda _, x: x + 0.1 * dense(shared, x), x)
        return x + dense(w, x), None

    return jax.lax.scan(turn, x, w)[0]


def scanned_backwards(w: Any, x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda x, w: (x + dense(w, x), None), x, w, reverse=True)[0]


def scanned_with_shared_weights(w: Any, x: jax.Array) -> jax.Array:
    """Turns add to one gradient, that of the weights that they share."""
    shared = jax.tree.map(lambda a: a[0], w)
    return jax.lax.scan(lambda x, w: (x + dense(shared, jnp.tanh(x * w["b"])), None), x, w)[0]


def scanned_heads(w: Any, x: jax.Array) -> jax.Array:
    """Products that have a batch already, and sums over several dimensions."""

    def turn(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        heads = jnp.einsum("rhd,hde->rhe", x.reshape(-1, 2, 4), w["w"].reshape(2, 4, 8))
        return x + jnp.tanh(heads * w["b"]).sum(1), None

    return jax.lax.scan(turn, x, w)[0]


def scanned_by_number(w: Any, x: jax.Array) -> jax.Array:
    """The number of a turn is part of what it computes."""

    def turn(carry: Any, w: Any) -> Any:
        n, x = carry
        return (n + 1, x + dense(w, x * jnp.float32(n))), None

    return jax.lax.scan(turn, (0, x), w)[0][1]


def parameters(kind: Any, seed: int) -> dict[str, np.ndarray]:
    lead = () if kind in (dense, block) else (3,)
    shapes = {"w": (8, 8), "b": (8,), "scale": (8,)}
    if kind is not block and kind is not scanned_again:
        del shapes["scale"]
    return {name: 0.3 * array(*lead, *shape, seed=seed + n) for n, (name, shape) in enumerate(shapes.items())}


def step_of(stages: Any) -> Any:
    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        for stage, w in zip(stages, params, strict=True):
            x = stage(w, x)
        return jnp.mean((x - y) ** 2)

    def step(params: Any, batch: Any) -> Any:
        return pw.accumulate(jax.value_and_grad(loss), M)(params, batch)

    return step


def batch() -> tuple[np.ndarray, np.ndarray]:
    return array(2 * M, 8, seed=50), array(2 * M, 8, seed=51)


def error(got: Any, wanted: Any) -> float:
    """The largest difference of an array, relative to its norm."""
    pairs = jax.tree.map(lambda a, b: np.linalg.norm(np.subtract(a, b)) / np.linalg.norm(b), got, wanted)
    return max(jax.tree.leaves(pairs))


@pytest.mark.parametrize("schedule", HALVED)
@pytest.mark.parametrize("kind", [dense, block, scanned, scanned_again, scans_inside])
def test_gradients_are_those_of_one_module(kind: Any, schedule: str):
    params = [parameters(kind, 10 * n) for n in range(3)]
    step = pw.program(step_of([on(kind) for on in places(3)]), schedule=schedule)
    assert 'part = "weight"' in step.lower(params, batch()).compile().as_text()
    assert error(step(params, batch()), jax.jit(step_of([kind] * 3))(params, batch())) < 1e-6


@pytest.mark.parametrize("schedule", HALVED)
@pytest.mark.parametrize("kind", [block, scanned, scanned_again])
def test_gradients_in_double_precision(kind: Any, schedule: str):
    with jax.enable_x64(True):
        params, data = jax.tree.map(np.float64, ([parameters(kind, n) for n in range(3)], batch()))
        step = pw.program(step_of([on(kind) for on in places(3)]), schedule=schedule)
        assert error(step(params, data), jax.jit(step_of([kind] * 3))(params, data)) < 1e-10


AT_ONCE = [scanned, scanned_again, scanned_backwards, scanned_with_shared_weights, scanned_heads]


@pytest.mark.parametrize("kind", [*AT_ONCE, scans_inside, scanned_by_number])
def test_weights_of_all_turns_at_once(kind: Any):
    """The half of the weights is no loop where the turns of a scan do not wait for each other."""
    params = [parameters(kind, 10 * n) for n in range(3)]
    step = pw.program(step_of([on(kind) for on in places(3)]), schedule="zb-h1")
    text = step.lower(params, batch()).as_text("sharded")
    functions = [part for part in text.split("func.func ") if part.partition("(")[0].endswith("_weight")]
    assert functions
    assert not any("stablehlo.while" in part for part in functions) or kind not in AT_ONCE
    assert error(step(params, batch()), jax.jit(step_of([kind] * 3))(params, batch())) < 1e-6


def test_weights_of_all_turns_at_once_on_two_devices():
    """The layers are split over the devices of a slice, as the user asks."""
    devices = pw.make_virtual_device_set()
    parts = {"w": P(None, None, "x"), "b": P(None, "x")}
    stages = [
        pw.jit(scanned, devices=devices.add_slice((2,), ("x",)), in_shardings=(parts, P())) for _ in range(2)
    ]
    params = [parameters(scanned, 10 * n) for n in range(2)]
    step = pw.program(step_of(stages), schedule="zb-h1")
    lowered = step.lower(params, batch())
    assert "batching_dims = [0]" in lowered.as_text("sharded")
    assert error(step(params, batch()), jax.jit(step_of([scanned] * 2))(params, batch())) < 1e-6


@pytest.mark.parametrize("schedule", HALVED)
def test_halves_give_what_the_whole_gives(schedule: str):
    params = [parameters(scanned, 10 * n) for n in range(3)]
    stages = [on(scanned) for on in places(3)]
    whole = pw.program(step_of(stages), schedule="1f1b")(params, batch())
    halves = pw.program(step_of(stages), schedule=schedule)(params, batch())
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(halves), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-8)


@pytest.mark.parametrize("kind", [dense, scanned])
@pytest.mark.parametrize("schedule", ["zb-v", "1f1b", "gpipe", "eager"])
def test_neighbours_with_stages_of_their_own_are_a_v(kind: Any, schedule: str):
    """Stages 1 and 2 are both on the second slice, and stay two stages."""
    devices = pw.make_virtual_device_set()
    first, second = (devices.add_slice((1,), ("x",)) for _ in range(2))
    stages = [pw.jit(kind, devices=place, stage=n) for n, place in enumerate([first, second, second, first])]
    params = [parameters(kind, 10 * n) for n in range(4)]
    step = pw.program(step_of(stages), schedule=schedule)
    text = step.lower(params, batch()).compile().as_text()
    assert all(f'kind = "fwd", microbatch = 0 : i64, stage = {n}' in text for n in range(4))
    assert error(step(params, batch()), jax.jit(step_of([kind] * 4))(params, batch())) < 1e-6


@pytest.mark.parametrize("schedule", ["interleaved-zb", "looped-bfs"])
def test_slices_that_take_turns(schedule: str):
    places_ = places(2)
    stages = [on(block) for on in (*places_, *places_)]
    params = [parameters(block, 10 * n) for n in range(4)]
    step = pw.program(step_of(stages), schedule=schedule)
    assert error(step(params, batch()), jax.jit(step_of([block] * 4))(params, batch())) < 1e-6


def test_a_file_that_writes_halves(tmp_path: Path):
    """Written as torch writes it: the first stage has no I, and what may overlap runs as F, then B."""
    file = tmp_path / "order.csv"
    rows = [["0F0", "0F1"], ["1F0"]]
    for m in range(M):
        rows[0] += [f"0I{m}", f"0W{m}"] + [f"0F{m + 2}"] * (m + 2 < M)
        rows[1] += [f"(1F{m + 1};1I{m})OVERLAP_F_B"] if m + 1 < M else [f"1I{m}"]
    rows[1] += [f"1W{m}" for m in range(M)]
    file.write_text("\n".join(map(",".join, rows)))
    params = [parameters(dense, n) for n in range(2)]
    step = pw.program(step_of([on(dense) for on in places(2)]), schedule=file)
    assert error(step(params, batch()), jax.jit(step_of([dense] * 2))(params, batch())) < 1e-6


def test_a_file_with_halves_for_one_of_two_loops(tmp_path: Path):
    """The second loop reads what the first has updated; each is ordered by its own rows."""

    def step_with(stages: Any) -> Any:
        def loss(params: Any, batch: Any) -> jax.Array:
            x, y = batch
            return jnp.mean((stages[1](params[1], stages[0](params[0], x)) - y) ** 2)

        def first(params: Any, batch: Any) -> Any:
            return jax.grad(loss)(params, batch)

        def second(params: Any, batch: Any) -> Any:
            return jax.value_and_grad(loss)(params, batch)

        def step(params: Any, batch: Any) -> Any:
            grads = pw.accumulate(first, 2)(params, batch)
            params = jax.tree.map(lambda w, g: w - 0.1 * g, params, grads)
            return pw.accumulate(second, 3)(params, batch)

        return step

    file = tmp_path / "order.csv"
    file.write_text(
        "@second\n0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1B0,1F2,1B1,1B2\n"
        "@first\n0F0,0F1,0W0,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n"
    )
    params = [parameters(dense, n) for n in range(2)]
    step = pw.program(step_with([on(dense) for on in places(2)]), schedule=file)
    text = step.lower(params, batch()).compile().as_text()
    assert not [line for line in text.splitlines() if "loop = @second" in line and "part = " in line]
    assert [line for line in text.splitlines() if "loop = @first" in line and 'part = "weight"' in line]
    assert error(step(params, batch()), jax.jit(step_with([dense] * 2))(params, batch())) < 1e-6


def test_what_waits_for_weights_counts_as_memory():
    """The last of three slices keeps one microbatch with 1f1b, and residuals of three with zb-h1."""
    params = [parameters(block, 10 * n) for n in range(3)]
    peaks = []
    for schedule in ("1f1b", "zb-h1"):
        stages = [on(block) for on in places(3)]
        compiled = pw.program(step_of(stages), schedule=schedule).lower(params, batch()).compile()
        timeline = compiled.timeline()
        peaks.append([timeline.peak_bytes(name) for name in timeline.slices])
    whole, halves = peaks
    assert halves[0] == whole[0]
    assert halves[2] > whole[2]


def test_a_repeated_forward_says_what_is_handed_over():
    params = [parameters(scanned_again, 10 * n) for n in range(2)]
    step = pw.program(step_of([on(scanned_again) for on in places(2)]), schedule="zb-h1")
    remarks = step.lower(params, batch()).remarks
    assert any("although the forward is recomputed" in remark.message for remark in remarks)


def test_a_policy_that_does_not_fit_says_what_would():
    params = [parameters(dense, n) for n in range(4)]
    step = pw.program(step_of([on(dense) for on in places(4)]), schedule="zb-h2")
    needs = "needs at least 7 microbatches for a chain of 4 stages, got 6: use zb-h1"
    with pytest.raises(ValueError, match=needs):
        step(params, batch())

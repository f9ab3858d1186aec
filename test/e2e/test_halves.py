"""Schedules that split backwards into halves: the results of `jax.jit` and of other schedules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check import assert_close
from jax.sharding import PartitionSpec as P
from models import gradients_of, placed_stages, sgd, squared_error

import pathways as pw

M = 6


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def dense(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w["w"] + w["b"])


def block(w: Any, x: jax.Array) -> jax.Array:
    """Applies a normalization, two products and a bias: gradients of sums beside gradients of products."""
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    h = (x - mean) * jax.lax.rsqrt(variance + 1e-5) * w["scale"]
    return x + jax.nn.gelu(h @ w["w"] + w["b"]) @ w["w"].T


def scanned(w: Any, x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda x, w: (x + dense(w, x), None), x, w)[0]


def scanned_again(w: Any, x: jax.Array) -> jax.Array:
    """Scans a body that is repeated in the backward."""
    body = jax.checkpoint(lambda x, w: (x + block(w, x), None))
    return jax.lax.scan(body, x, w)[0]


def scans_inside(w: Any, x: jax.Array) -> jax.Array:
    """Scans within a scan, with a weight that all iterations share."""
    shared = jax.tree.map(lambda a: a[0], w)

    def iteration(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        x = jax.lax.fori_loop(0, 2, lambda _, x: x + 0.1 * dense(shared, x), x)
        return x + dense(w, x), None

    return jax.lax.scan(iteration, x, w)[0]


def scanned_backwards(w: Any, x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda x, w: (x + dense(w, x), None), x, w, reverse=True)[0]


def scanned_with_shared_weights(w: Any, x: jax.Array) -> jax.Array:
    """Scans iterations that add to one gradient, that of the weights that they share."""
    shared = jax.tree.map(lambda a: a[0], w)
    return jax.lax.scan(lambda x, w: (x + dense(shared, jnp.tanh(x * w["b"])), None), x, w)[0]


def scanned_heads(w: Any, x: jax.Array) -> jax.Array:
    """Scans products that have a batch already, and sums over several dimensions."""

    def iteration(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        heads = jnp.einsum("rhd,hde->rhe", x.reshape(-1, 2, 4), w["w"].reshape(2, 4, 8))
        return x + jnp.tanh(heads * w["b"]).sum(1), None

    return jax.lax.scan(iteration, x, w)[0]


def scanned_by_number(w: Any, x: jax.Array) -> jax.Array:
    """Scans iterations that compute with their number."""

    def iteration(carry: Any, w: Any) -> Any:
        n, x = carry
        return (n + 1, x + dense(w, x * jnp.float32(n))), None

    return jax.lax.scan(iteration, (0, x), w)[0][1]


def parameters(kind: Any, seed: int) -> dict[str, np.ndarray]:
    lead = () if kind in (dense, block) else (3,)
    shapes = {"w": (8, 8), "b": (8,), "scale": (8,)}
    if kind is not block and kind is not scanned_again:
        del shapes["scale"]
    return {name: 0.3 * array(*lead, *shape, seed=seed + n) for n, (name, shape) in enumerate(shapes.items())}


def step_of(stages: Any) -> Any:
    return gradients_of(squared_error(stages), M)


def batch() -> tuple[np.ndarray, np.ndarray]:
    return array(2 * M, 8, seed=50), array(2 * M, 8, seed=51)


def check(stages: Any, kind: Any, schedule: Any, tolerance: float = 1e-6) -> pw.Program:
    """Runs a program of stages of a kind, and one module of `jax.jit`; returns the program."""
    params = [parameters(kind, 10 * n) for n in range(len(stages))]
    data = batch()
    if jax.config.jax_enable_x64:
        params, data = jax.tree.map(np.float64, (params, data))
    step = pw.program(step_of(stages), schedule=schedule)
    assert_close(step(params, data), jax.jit(step_of([kind] * len(stages)))(params, data), tolerance)
    return step


@pytest.mark.parametrize(("schedule", "kind"), [("zb-h1", dense), ("zb-h2", block)])
def test_halves_gradients_agree_with_jit(schedule: str, kind: Any):
    step = check(placed_stages(3, kind), kind, schedule)
    text = step.lower([parameters(kind, 0)] * 3, batch()).compile().as_text()
    assert 'part = "weight"' in text


@pytest.mark.parametrize(("schedule", "kind"), [("zb-h1", block), ("zb-h2", scanned)])
def test_halves_gradients_in_double_precision(schedule: str, kind: Any):
    with jax.enable_x64(True):
        check(placed_stages(3, kind), kind, schedule, tolerance=1e-10)


AT_ONCE = [scanned, scanned_again, scanned_backwards, scanned_with_shared_weights, scanned_heads]


@pytest.mark.parametrize("kind", [*AT_ONCE, scans_inside, scanned_by_number])
def test_halves_weights_of_all_iterations_at_once(kind: Any):
    """The half of the weights has no loop if the iterations of a scan do not wait for each other."""
    step = check(placed_stages(2, kind), kind, "zb-h1")
    text = step.lower([parameters(kind, 0)] * 2, batch()).as_text("sharded")
    functions = [body for body in text.split("func.func ") if body.partition("(")[0].endswith("_weight")]
    assert functions
    assert not any("stablehlo.while" in body for body in functions) or kind not in AT_ONCE


def test_halves_weights_of_all_iterations_on_two_devices():
    """The layers are split over the devices of a slice, as the user requests."""
    specs = {"w": P(None, None, "a0"), "b": P(None, "a0")}
    step = check(placed_stages(2, scanned, 2, in_shardings=(specs, P())), scanned, "zb-h1")
    lowered = step.lower([parameters(scanned, 0)] * 2, batch())
    assert "batching_dims = [0]" in lowered.as_text("sharded")


def test_halves_agree_with_whole_backwards():
    params = [parameters(scanned, 10 * n) for n in range(3)]
    step = step_of(placed_stages(3, scanned))
    halves, whole = (pw.program(step, schedule=name)(params, batch()) for name in ("zb-h2", "1f1b"))
    assert_close(halves, whole)


@pytest.mark.parametrize(("schedule", "kind"), [("zb-v", scanned), ("gpipe", dense), ("eager", dense)])
def test_halves_neighbours_on_one_slice_stay_stages_of_a_v(schedule: str, kind: Any):
    """Stages 1 and 2 are both on the second slice, and stay two stages."""
    devices = pw.make_virtual_device_set()
    first, second = (devices.add_slice((1,), ("x",)) for _ in range(2))
    stages = [pw.jit(kind, devices=place, stage=n) for n, place in enumerate([first, second, second, first])]
    step = check(stages, kind, schedule)
    text = step.lower([parameters(kind, 0)] * 4, batch()).compile().as_text()
    assert all(f'kind = "fwd", microbatch = 0 : i64, stage = {n}' in text for n in range(4))


@pytest.mark.parametrize("schedule", ["interleaved-zb", "looped-bfs"])
def test_halves_slices_in_round_robin_order(schedule: str):
    check([*(stages := placed_stages(2, block)), *stages], block, schedule)


def test_halves_from_file_of_torch(tmp_path: Path):
    """The schedule is written as torch writes it: the first stage has no I, and overlaps run as F, then B."""
    file = tmp_path / "order.csv"
    rows = [["0F0", "0F1"], ["1F0"]]
    for m in range(M):
        rows[0] += [f"0I{m}", f"0W{m}"] + [f"0F{m + 2}"] * (m + 2 < M)
        rows[1] += [f"(1F{m + 1};1I{m})OVERLAP_F_B"] if m + 1 < M else [f"1I{m}"]
    rows[1] += [f"1W{m}" for m in range(M)]
    file.write_text("\n".join(map(",".join, rows)))
    check(placed_stages(2, dense), dense, file)


def test_halves_from_file_for_one_of_two_loops(tmp_path: Path):
    """The second loop reads what the first has updated; each is ordered by its own rows."""

    def step_with(stages: Any) -> Any:
        loss = squared_error(stages)

        def first(params: Any, batch: Any) -> Any:
            return jax.grad(loss)(params, batch)

        def second(params: Any, batch: Any) -> Any:
            return jax.value_and_grad(loss)(params, batch)

        def step(params: Any, batch: Any) -> Any:
            grads = pw.accumulate(first, 2)(params, batch)
            return pw.accumulate(second, 3)(sgd(params, grads), batch)

        return step

    file = tmp_path / "order.csv"
    file.write_text(
        "@second\n0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1B0,1F2,1B1,1B2\n"
        "@first\n0F0,0F1,0W0,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n"
    )
    params = [parameters(dense, n) for n in range(2)]
    step = pw.program(step_with(placed_stages(2, dense)), schedule=file)
    text = step.lower(params, batch()).compile().as_text()
    assert not [line for line in text.splitlines() if "loop = @second" in line and "part = " in line]
    assert [line for line in text.splitlines() if "loop = @first" in line and 'part = "weight"' in line]
    assert_close(step(params, batch()), jax.jit(step_with([dense] * 2))(params, batch()))


def test_halves_memory_of_residuals_that_wait_for_weights():
    """The last of three slices keeps one microbatch with 1f1b, and residuals of three with zb-h1."""
    params = [parameters(block, 10 * n) for n in range(3)]
    peaks = []
    for schedule in ("1f1b", "zb-h1"):
        step = pw.program(step_of(placed_stages(3, block)), schedule=schedule)
        timeline = step.lower(params, batch()).compile().timeline()
        peaks.append([timeline.peak_bytes(name) for name in timeline.slices])
    whole, halves = peaks
    assert halves[0] == whole[0]
    assert halves[2] > whole[2]


def test_halves_remark_on_recomputed_forward():
    params = [parameters(scanned_again, 10 * n) for n in range(2)]
    step = pw.program(step_of(placed_stages(2, scanned_again)), schedule="zb-h1")
    remarks = step.lower(params, batch()).remarks
    assert any("although the forward is recomputed" in remark.message for remark in remarks)


def test_halves_error_names_policy_that_fits():
    params = [parameters(dense, n) for n in range(4)]
    step = pw.program(step_of(placed_stages(4, dense)), schedule="zb-h2")
    needs = "needs at least 7 microbatches for a chain of 4 stages, got 6: use zb-h1"
    with pytest.raises(ValueError, match=needs):
        step(params, batch())

"""`pw.auto`: a loss in plain JAX, cut into stages, has the gradients that it has without cuts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways as pw

MICROBATCHES = 4


def slices(count: int) -> list[Any]:
    devices = pw.make_virtual_device_set()
    return [devices.add_slice((1,), ("x",)) for _ in range(count)]


def check_gradients(
    plan: pw.AutoPlan, loss: Callable[..., Any], init: Callable[..., Any], batch: Any, has_aux: bool = False
) -> Any:
    """Compares a step of a plan with one of plain JAX; returns the gradients of the plan."""

    def gradient(loss: Callable[..., Any]) -> Callable[..., Any]:
        def of_microbatch(*args: Any) -> Any:
            return jax.value_and_grad(loss, has_aux=has_aux)(*args)

        return pw.accumulate(of_microbatch, MICROBATCHES)

    @pw.program(schedule=plan.schedule)
    def step(params: Any, batch: Any) -> Any:
        return gradient(plan.loss)(params, batch)

    got, grads = step(plan.init(init, jax.random.key(0)), batch)
    wanted, wanted_grads = jax.jit(gradient(loss))(init(jax.random.key(0)), batch)
    assert norm(difference(got, wanted)) <= 1e-6 * norm(wanted)
    assert norm(difference(plan.merge(grads), wanted_grads)) <= 1e-6 * norm(wanted_grads)
    return grads


def difference(a: Any, b: Any) -> Any:
    return jax.tree.map(lambda x, y: np.asarray(x, np.float64) - np.asarray(y, np.float64), a, b)


def norm(tree: Any) -> float:
    return float(np.sqrt(sum(np.sum(np.asarray(leaf, np.float64) ** 2) for leaf in jax.tree.leaves(tree))))


def microbatch_of(batch: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[: leaf.shape[0] // MICROBATCHES], batch)


def numbers(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(9), (MICROBATCHES * shape[0], *shape[1:]))


DIMS = (16, 16, 16, 16, 16, 16, 32, 32, 16)


def init_mlp(key: jax.Array) -> Any:
    keys = jax.random.split(key, len(DIMS) - 1)
    shapes = zip(keys, DIMS, DIMS[1:], strict=False)
    return [jax.random.normal(key, (a, b)) / np.sqrt(a) for key, a, b in shapes]


def mlp_loss(params: Any, batch: Any) -> jax.Array:
    x, y = batch
    for w in params:
        x = jnp.tanh(x @ w)
    return jnp.mean((x - y) ** 2)


def test_auto_balances_wide_layers() -> None:
    batch = numbers(8, 16), numbers(8, 16)
    plan = pw.auto(
        mlp_loss,
        slices=slices(2),
        num_microbatches=4,
        args=(init_mlp(jax.random.key(0)), microbatch_of(batch)),
    )
    even = next(cut for cut in plan.tried if cut.kind == "even")
    assert plan.tried[0].step < 0.8 * even.step
    assert "even" in str(plan)
    check_gradients(plan, mlp_loss, init_mlp, batch)


def init_lm(key: jax.Array) -> Any:
    keys = jax.random.split(key, 3)
    return {
        "embed": jax.random.normal(keys[0], (32, 8)),
        "up": jax.random.normal(keys[1], (6, 8, 16)) / 3,
        "down": jax.random.normal(keys[2], (6, 16, 8)) / 4,
    }


def lm_loss(scan: bool, remat: bool) -> Callable[..., jax.Array]:
    def layer(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
        mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1])))
        scores = jnp.where(mask == 1, x @ x.swapaxes(1, 2), -1e9)
        x = x + jax.nn.softmax(scores) @ x
        return x + jax.nn.gelu(x @ weights["up"].astype(x.dtype)) @ weights["down"], None

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        x = params["embed"][inputs] + jnp.sin(jnp.arange(inputs.shape[1])[:, None])
        body = jax.checkpoint(layer) if remat else layer
        weights = {"up": params["up"], "down": params["down"]}
        if scan:
            x, _ = jax.lax.scan(body, x, weights)
        else:
            for n in range(6):
                x, _ = body(x, jax.tree.map(lambda leaf, n=n: leaf[n], weights))
        # Tied to the embedding.
        logits = jax.nn.log_softmax(x @ params["embed"].T)
        return -jnp.take_along_axis(logits, targets[..., None], -1).mean()

    return loss


@pytest.mark.parametrize(("scan", "remat"), [(True, True), (False, False)])
def test_auto_cuts_language_model_between_layers(scan: bool, remat: bool) -> None:
    loss = lm_loss(scan, remat)
    tokens = jax.random.randint(jax.random.key(1), (4 * MICROBATCHES, 9), 0, 32)
    plan = pw.auto(
        loss,
        slices=slices(2),
        num_microbatches=4,
        args=(init_lm(jax.random.key(0)), microbatch_of(tokens)),
        schedules=("1f1b", "zb-h1"),
    )
    assert isinstance(plan.params["up"], tuple), "each stage has a block of the layers"
    check_gradients(plan, loss, init_lm, tokens)


def test_auto_repeats_plan_from_file(tmp_path: Path) -> None:
    args = init_lm(jax.random.key(0)), jax.ShapeDtypeStruct((4, 9), jnp.int32)
    options = {"slices": slices(2), "num_microbatches": 4, "args": args, "schedules": ("1f1b", "zb-v")}
    plan = pw.auto(lm_loss(True, False), **options)
    assert str(pw.auto(lm_loss(True, False), **options)) == str(plan), "each search finds the same"
    plan.save(tmp_path / "plan.json")
    again = pw.auto(lm_loss(True, False), **options, plan=tmp_path / "plan.json")
    assert str(again) == str(plan)
    assert again.timeline().step_time == plan.tried[0].step
    with pytest.raises(ValueError, match="is of another loss"):
        pw.auto(lm_loss(False, False), **options, plan=tmp_path / "plan.json")


@pytest.mark.parametrize("scoped", [True, False])
def test_auto_names_layers_by_scope_or_line(scoped: bool) -> None:
    def loss(params: Any, x: Any) -> Any:
        for n, w in enumerate(params):
            with jax.named_scope(f"{'deep_' * 20}model/layer_{n}" if scoped else ""):
                # A function of JAX that is compiled by itself has a name stack of its own.
                x = jax.nn.relu(x @ w)
        return jnp.mean(x)

    params = [jax.ShapeDtypeStruct((16, 16), jnp.float32)] * 4
    microbatch = jax.ShapeDtypeStruct((4, 16), jnp.float32)
    plan = pw.auto(loss, slices=slices(2), num_microbatches=MICROBATCHES, args=(params, microbatch))
    rows = str(plan).partition("\nstages\n")[2].splitlines()
    layers = [row[rows[0].index("begins at") :] for row in rows[1:]]
    assert max(map(len, rows)) <= 120
    pattern = r"\.\.\.\w+model/layer_\d" if scoped else r"test_auto.py:\d+ \(loss\)"
    assert all(re.search(pattern, layer) for layer in layers), layers


def test_auto_splits_and_merges_state_of_optimizer() -> None:
    params = init_lm(jax.random.key(0))
    args = params, jax.ShapeDtypeStruct((4, 9), jnp.int32)
    plan = pw.auto(lm_loss(True, False), slices=slices(2), num_microbatches=4, args=args, schedules=("1f1b",))
    state = {"step": 3, "moments": (params, params)}
    split = plan.split(state)
    assert jax.tree.structure(split["moments"][0]) == jax.tree.structure(plan.params)
    jax.tree.map(np.testing.assert_array_equal, plan.merge(split), state)


@pytest.mark.quick
def test_auto_writes_plan_as_placed_functions() -> None:
    params, tokens = init_lm(jax.random.key(0)), jnp.ones((4, 9), jnp.int32)
    two = slices(2)
    plan = pw.auto(
        lm_loss(True, True), slices=two, num_microbatches=4, args=(params, tokens), schedules=("1f1b",)
    )
    written: dict[str, Any] = {}
    exec(plan.source(), written)
    loss = written["cut_loss"](*two, constants=plan.constants)
    assert loss(plan.split(params), tokens) == plan.loss(plan.split(params), tokens)


@pytest.mark.quick
def test_auto_reads_times_from_trace(tmp_path: Path) -> None:
    params = init_mlp(jax.random.key(0))
    batch = numbers(8, 16), numbers(8, 16)
    options = {"slices": slices(2), "num_microbatches": 4, "args": (params, microbatch_of(batch))}
    plan = pw.auto(mlp_loss, **options, schedules=("1f1b",))

    @pw.program(schedule=plan.schedule)
    def step(params: Any, batch: Any) -> Any:
        return pw.accumulate(jax.value_and_grad(plan.loss), MICROBATCHES)(params, batch)

    step(params, batch)
    with pw.trace(tmp_path / "trace.json"):
        jax.block_until_ready(step(params, batch))
    timed = pw.auto(mlp_loss, **options, times=tmp_path / "trace.json", latency="1us", bandwidth="10GB/s")
    assert timed.unit == "s"
    with pytest.raises(ValueError, match="has no step in which the loss of a plan of 'penalized' ran"):
        pw.auto(penalized, **options, times=tmp_path / "trace.json")


def penalized(params: Any, batch: Any) -> jax.Array:
    return mlp_loss(params, batch) + 1e-3 * sum(jnp.sum(w**2) for w in params)


def with_a_placed_call(params: Any, batch: Any) -> jax.Array:
    return mlp_loss(pw.jit(lambda w: w, devices=slices(1)[0])(params), batch)


def with_effects(params: Any, batch: Any) -> jax.Array:
    jax.debug.print("{}", batch[0].sum())
    return mlp_loss(params, batch)


def with_one_wide_product(params: Any, batch: Any) -> jax.Array:
    x = jnp.tanh(jnp.tile(batch[0] @ params[0], (1, 64))) @ jnp.concatenate([params[1]] * 64)
    return jnp.mean(x @ params[2])


@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        (mlp_loss, {"slices": slices(30)}, r"at .*test_auto.py:.* positions, too few for 30"),
        (
            with_one_wide_product,
            {"slices": slices(4)},
            r"one operation at .* is 9\d% of the work: . slices do",
        ),
        (with_a_placed_call, {}, "'lambda', placed, is called in it at .*test_auto.py"),
        (with_effects, {}, "has effects .* at .*test_auto.py"),
        (mlp_loss, {"max_bytes": "1KiB"}, "no cut fits max_bytes=1024 .* the smallest peak is"),
        (lambda params, batch: batch[0] @ params[0], {}, "must return a scalar of floats"),
        (mlp_loss, {"times": {"units": {"99": 1}}}, "unit '99' does not exist; the last unit is"),
        (mlp_loss, {"latency": "5us"}, "work is counted in operations: give times= too"),
        (mlp_loss, {"speeds": [1, 2, 3]}, "a positive number for each of 2 slices"),
        (mlp_loss, {"schedules": ["zb-v(max-live=1)"], "num_microbatches": 1}, "no schedule fits a cut"),
    ],
)
def test_auto_refuses_what_cannot_be_cut(loss: Any, options: dict[str, Any], message: str) -> None:
    batch = numbers(2, 16), numbers(2, 16)
    args = init_mlp(jax.random.key(0)), microbatch_of(batch)
    with pytest.raises((ValueError, TypeError), match=message):
        pw.auto(loss, **({"slices": slices(2), "num_microbatches": 4, "args": args} | options))


def test_auto_refuses_slices_with_replicas() -> None:
    devices = pw.make_virtual_device_set(replicas=2)
    two = [devices.add_slice(1, "x") for _ in range(2)]
    with pytest.raises(ValueError, match="has 2 replicas"):
        pw.auto(mlp_loss, slices=two, num_microbatches=4, args=(init_mlp(jax.random.key(0)), numbers(1, 16)))


def test_auto_loss_has_values_and_settings_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    params, batch = init_mlp(jax.random.key(0)), numbers(1, 16)
    plan = pw.auto(
        noisy_loss, slices=slices(2), num_microbatches=4, args=(params, batch), schedules=("1f1b",)
    )

    def step(loss: Callable[..., Any]) -> Callable[..., Any]:
        return lambda params, batch: pw.accumulate(loss, 1)(params, batch)

    ours, theirs = pw.program(step(plan.loss)), jax.jit(step(noisy_loss))
    before = ours(params, batch)
    with jax.threefry_partitionable(not jax.config.jax_threefry_partitionable):
        assert before != pytest.approx(theirs(params, batch))
        assert ours(params, batch) == pytest.approx(theirs(params, batch))
    with jax.default_matmul_precision("highest"):
        lowered = pw.program(step(jax.value_and_grad(plan.loss))).lower(params, batch)
        reference = jax.jit(step(jax.value_and_grad(noisy_loss))).lower(params, batch)
        assert lowered.as_text("imported").count("HIGHEST") == reference.as_text().count("HIGHEST")

    monkeypatch.setitem(captured, "scale", 3.0)
    assert ours(params, batch) == before, "as a function of jax.jit"
    assert plan.loss(params, batch) == pytest.approx(3 * before)
    assert pw.program(step(plan.loss))(params, batch) == pytest.approx(3 * before)
    with jax.disable_jit():
        assert ours(params, batch) == pytest.approx(3 * before)

    monkeypatch.setitem(captured, "absolute", True)
    line = r"at .*test_auto.py:.* \(noisy_loss\)"
    message = (
        f"'noisy_loss' has other operations .* unit [0-9]+ is 'abs' {line}, and was 'mul' {line}; a value"
    )
    with pytest.raises(pw.ProgramError, match=message):
        pw.program(step(plan.loss))(params, batch)


captured = {"scale": 1.0, "absolute": False}


def noisy_loss(params: Any, batch: Any) -> jax.Array:
    for w in params:
        batch = jnp.tanh(batch @ w)
    batch += jax.random.normal(jax.random.key(3), batch.shape)
    return (abs(batch) if captured["absolute"] else batch * captured["scale"]).mean()


def test_auto_names_arguments_unlike_plan() -> None:
    params = init_mlp(jax.random.key(0))
    args = params, (numbers(1, 16), numbers(1, 16))
    plan = pw.auto(mlp_loss, slices=slices(2), num_microbatches=4, args=args, schedules=("1f1b",))
    with pytest.raises(TypeError, match=r"args\[1\]\[0\] of type .*4,16.*, got .*3,16.* is baked in"):
        plan.loss(params, (jnp.ones((3, 16)), args[1][1]))
    with pytest.raises(TypeError, match=r"args\[0\]\[2\] of type float32\[16,16\], got float32\[16\]"):
        plan.loss([*params[:2], params[2][0], *params[3:]], args[1])
    with pytest.raises(TypeError, match="but the plan is for parameters of structure"):
        plan.init(lambda key: key, jax.random.key(0))

"""Programs with `zero1=True`: each replica keeps and updates a block of the optimizer's state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from check import assert_close, assert_copies_equal, assert_equal
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from models import place_on, squared_error

import pathways as pw
from pathways.compiler.from_mlir import lower_module
from pathways.dialect import make_context
from pathways.passes.pipeline import Options
from pathways.runtime.plan.plan import Plan, Transfer

WIDTH, ROWS, MICROBATCHES = 24, 48, 12

OPTIMIZERS = {
    "nesterov": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adamw": optax.adamw(optax.cosine_decay_schedule(1e-2, 100), weight_decay=0.1),
    "lion": optax.lion(1e-2),
    "rmsprop": optax.rmsprop(1e-2, momentum=0.9, centered=True),
    "bfloat16": optax.adam(1e-2, mu_dtype=jnp.bfloat16),
    "chain": optax.chain(optax.scale_by_rss(), optax.scale_by_amsgrad(), optax.scale(-1e-2), optax.ema(0.9)),
}
# These add up over all of an array, and in another order when replicas have blocks of it.
SUMMING = {
    "lamb": optax.lamb(1e-2),
    "now and then": optax.MultiSteps(optax.adam(1e-2), 2),
    "finite": optax.chain(optax.zero_nans(), optax.adam(1e-2)),
    "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=8),
    # Sums in a branch, and in a branch of a branch.
    "clipped if finite": optax.apply_if_finite(
        optax.chain(optax.clip_by_global_norm(0.05), optax.adafactor(1e-2, min_dim_size_to_factor=8)), 2
    ),
    "lamb if finite, now and then": optax.MultiSteps(optax.apply_if_finite(optax.lamb(1e-2), 2), 2),
}


def layer(p: dict[str, Any], x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ p["w"] + p["b"]) * p.get("scale", 1.0)


def step_of(layers: list[Callable[..., Any]], optimizer: Any) -> Callable[..., Any]:
    loss = squared_error(layers)

    def step(params, state, batch):
        value, grads = pw.accumulate(jax.value_and_grad(loss), MICROBATCHES)(params, batch)
        updates, state = optimizer.update(grads, state, params)
        return value, optax.apply_updates(params, updates), state

    return step


def stages(replicas: int, count: int = 2, shape: tuple[int, ...] = (1,), **shardings: Any) -> list[Any]:
    devices = pw.make_virtual_device_set(replicas=replicas)
    axes = ("x", "y")[: len(shape)]
    return place_on([devices.add_slice(shape, axes) for _ in range(count)], layer, **shardings)


def inputs(count: int = 2, dtype: Any = np.float32, odd: bool = True) -> tuple[list[Any], Any]:
    """Returns parameters: the weight and the bias divide by 2, 3 and 4, the scale by none of them.

    Without `odd` there is no scale.
    """
    rng = np.random.default_rng(0)

    def array(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=shape) / 2, dtype)

    params = [{"w": array(WIDTH, WIDTH), "b": array(WIDTH)} for _ in range(count)]
    if odd:
        params = [{**p, "scale": 1 + array(1)} for p in params]
    return jax.device_get(params), jax.device_get((array(ROWS, WIDTH), array(ROWS, WIDTH)))


def trained(step: Any, params: Any, state: Any, batch: Any, steps: int = 3) -> Any:
    values = []
    for _ in range(steps):
        value, params, state = step(params, state, batch)
        values.append(value)
    return values, params, state


def is_split(array: Any) -> bool:
    axes = [axis for entry in array.sharding.spec if entry for axis in np.atleast_1d(entry)]
    return "replica" in axes


def assert_state_is_shared(state: Any, params: Any) -> None:
    """Checks that divisible arrays are split, and the others whole."""
    for leaf in jax.tree.leaves(state):
        assert is_split(leaf) == (leaf.size > 1), f"{leaf.shape}: {leaf.sharding.spec}"
    assert not any(map(is_split, jax.tree.leaves(params)))


def exchanged_bytes(plan: Plan) -> dict[str, int]:
    """Returns the bytes that each slice sends to those of its stage in other replicas."""
    sent: dict[str, int] = {}
    for step in plan.steps:
        if isinstance(step, Transfer) and step.src.partition("_r")[0] == step.dst.partition("_r")[0]:
            sent[step.src] = sent.get(step.src, 0) + plan.bytes_moved(step)
    return sent


@pytest.mark.parametrize(
    ("name", "replicas", "schedule"),
    [
        ("nesterov", 4, None),
        ("adamw", 3, "1f1b"),
        ("lion", 2, "zb-h1"),
        ("rmsprop", 2, None),
        ("bfloat16", 3, None),
        ("chain", 4, "1f1b"),
    ],
)
def test_zero1_updates_donated_state_to_the_same_bits(name: str, replicas: int, schedule: str | None) -> None:
    params, batch = inputs()
    optimizer = OPTIMIZERS[name]
    step = step_of(stages(replicas), optimizer)
    options: dict[str, Any] = {"schedule": schedule, "donate_argnums": (0, 1)}
    train = pw.program(step, zero1=True, **options)
    state = jax.device_get(optimizer.init(params))
    split = trained(train, params, state, batch)
    assert_equal(split, trained(pw.program(step, **options), params, state, batch))
    assert_close(split, trained(jax.jit(step_of([layer] * 2, optimizer)), params, state, batch), 1e-5)
    # The next step takes the results of this one as they are.
    given = jax.tree.leaves((*split[1:], batch))
    brought = train.executables[0].transfer_arguments(given)
    results = len(jax.tree.leaves(split[1:]))
    assert all(one is other for one, other in zip(brought[:results], given[:results], strict=True))
    assert_state_is_shared(split[2], split[1])


@pytest.mark.parametrize(
    ("name", "replicas"),
    [
        *(("lamb", 3), ("now and then", 2), ("finite", 4), ("adafactor", 2)),
        *(("clipped if finite", 2), ("lamb if finite, now and then", 3)),
    ],
)
def test_zero1_adds_up_norms_of_blocks(name: str, replicas: int) -> None:
    params, batch = inputs()
    optimizer = SUMMING[name]
    state = optimizer.init(params)
    split = trained(pw.program(step_of(stages(replicas), optimizer), zero1=True), params, state, batch)
    assert_close(split, trained(jax.jit(step_of([layer] * 2, optimizer)), params, state, batch), 1e-5)
    assert any(map(is_split, jax.tree.leaves(split[2])))
    assert_copies_equal(split)


@pytest.mark.parametrize(
    ("replicas", "shape", "spec"),
    [
        (2, (2,), P("x")),
        (4, (2,), P("x")),
        (2, (2,), P(None, "x")),
        (4, (1, 2), P("x", "y")),
        (2, (1, 2), P()),
    ],
)
def test_zero1_on_slices_of_several_devices(replicas: int, shape: tuple[int, ...], spec: P) -> None:
    count = 4 // replicas
    params, batch = inputs(count)
    shardings = ({"w": spec, "b": P(), "scale": P()}, P("x"))
    optimizer = optax.chain(optax.clip_by_global_norm(0.05), optax.adam(1e-2))
    step = step_of(stages(replicas, count, shape, in_shardings=shardings), optimizer)
    state = optimizer.init(params)
    split = trained(pw.program(step, zero1=True), params, state, batch)
    assert_close(split, trained(jax.jit(step_of([layer] * count, optimizer)), params, state, batch), 1e-5)
    assert_state_is_shared(split[2], split[1])
    assert_copies_equal(split)


@pytest.mark.parametrize("replicas", [2, 3])
def test_zero1_sends_as_many_bytes_and_saves_memory_of_the_state(replicas: int) -> None:
    rng = np.random.default_rng(0)
    width = 96
    params = [{"w": rng.normal(size=(width, width)).astype(np.float32), "b": np.zeros(width, np.float32)}]
    batch = tuple(rng.normal(size=(ROWS, width)).astype(np.float32) for _ in range(2))
    optimizer = optax.adam(1e-2)
    step = step_of(stages(replicas, 1), optimizer)
    state = optimizer.init(params)
    plain, split = (
        pw.program(step, zero1=zero1, donate_argnums=(0, 1)).lower(params, state, batch).compile()
        for zero1 in (False, True)
    )
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    share = 2 * (replicas - 1) / replicas * size
    assert len(exchanged_bytes(split.plan)) == replicas
    # The loss is sent by itself.
    for sent in (*exchanged_bytes(plain.plan).values(), *exchanged_bytes(split.plan).values()):
        assert share <= sent <= share + 8 * replicas * 2
    arguments = [
        [use.argument_size_in_bytes for use in compiled.memory_analysis().values()]
        for compiled in (plain, split)
    ]
    for whole, split in zip(*arguments, strict=True):
        # Blocks of both moments are missing; the number of the replica is added.
        assert whole - split == 2 * size - 2 * size // replicas - 4


def test_zero1_splits_a_moving_average_and_a_master_copy() -> None:
    """Parameters of 16 bits, which microbatches read, are cast from 32 bits that only the update reads."""
    params, batch = inputs(odd=False)

    def step_of_master(layers):
        loss = squared_error(layers)

        def step(state, batch):
            params = state["params"]
            value, grads = pw.accumulate(jax.value_and_grad(loss), MICROBATCHES)(params, batch)
            master = jax.tree.map(lambda w, g: w - 0.1 * g.astype(w.dtype), state["master"], grads)
            mean = jax.tree.map(lambda e, w: 0.9 * e + 0.1 * w, state["mean"], master)
            params = jax.tree.map(lambda w: w.astype(jnp.bfloat16), master)
            return value, {"params": params, "master": master, "mean": mean}

        return step

    low = jax.tree.map(lambda w: jnp.asarray(w, jnp.bfloat16), params)
    first = {"params": low, "master": params, "mean": params}
    step = step_of_master(stages(2))
    results = []
    for train in (pw.program(step, zero1=True), pw.program(step)):
        state = first
        for _ in range(3):
            value, state = train(state, batch)
        results.append((value, state))
    assert_equal(*results)
    state = results[0][1]
    assert all(map(is_split, jax.tree.leaves((state["master"], state["mean"]))))
    assert not any(map(is_split, jax.tree.leaves(state["params"])))


def test_zero1_splits_the_state_of_a_tied_weight_and_stacked_layers() -> None:
    """Both stages read the embedding; a scan iterates over the layers of a stage, stacked in one array."""
    devices = pw.make_virtual_device_set(replicas=2)
    s0, s1 = (devices.add_slice((1,), ("x",)) for _ in range(2))
    rng = np.random.default_rng(0)
    params = {
        "embedding": rng.normal(size=(32, 8)).astype(np.float32),
        "layers": rng.normal(size=(4, 8, 8)).astype(np.float32) / 2,
    }
    tokens = rng.integers(0, 32, (24, 4))

    def front(embedding, layers, tokens):
        return jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), embedding[tokens], layers)[0]

    def back(embedding, x, tokens):
        return optax.softmax_cross_entropy_with_integer_labels(x @ embedding.T, tokens).mean()

    optimizer = optax.adamw(1e-2)

    def step_of_tied(front, back):
        def loss(params, tokens):
            x = front(params["embedding"], params["layers"], tokens)
            return back(params["embedding"], x, tokens)

        def step(params, state, tokens):
            value, grads = pw.accumulate(jax.value_and_grad(loss), 4)(params, tokens)
            updates, state = optimizer.update(grads, state, params)
            return value, optax.apply_updates(params, updates), state

        return step

    state = optimizer.init(params)
    step = step_of_tied(pw.jit(front, devices=s0), pw.jit(back, devices=s1))
    split = trained(pw.program(step, schedule="1f1b", zero1=True), params, state, tokens)
    assert_equal(split[:1], trained(pw.program(step, schedule="1f1b"), params, state, tokens)[:1])
    assert_close(split, trained(jax.jit(step_of_tied(front, back)), params, state, tokens), 1e-5)
    assert_state_is_shared(split[2], split[1])


def test_zero1_rounds_only_gradients_in_an_exchange_of_half_the_bytes() -> None:
    params, batch = inputs(odd=False)
    optimizer = optax.sgd(0.1, momentum=0.9)
    step = step_of(stages(3), optimizer)
    state = optimizer.init(params)
    split = trained(pw.program(step, zero1=True, exchange_dtype="bfloat16"), params, state, batch)
    plain = trained(jax.jit(step_of([layer] * 2, optimizer)), params, state, batch)
    for got, want, old in zip(*(jax.tree.leaves(p) for p in (split[1], plain[1], params)), strict=True):
        update, exact = np.asarray(got) - old, np.asarray(want) - old
        np.testing.assert_allclose(update, exact, rtol=0, atol=2**-7 * np.abs(exact).max())
    assert_copies_equal(split)


class TestStoredPrograms:
    @pytest.mark.process
    def test_zero1_in_a_bundle(self, tmp_path: Path) -> None:
        params, batch = inputs(odd=False)
        optimizer = optax.adam(1e-2)
        state = optimizer.init(params)
        program = pw.program(step_of(stages(2), optimizer), zero1=True)
        compiled = program.lower(params, state, batch).compile()
        compiled.save(tmp_path / "step.pwb")
        for trust in (True, False):
            loaded = pw.load(tmp_path / "step.pwb", trust=trust)
            results = (trained(program, params, state, batch) for program in (loaded, compiled))
            assert_equal(*map(jax.tree.leaves, results))  # A bundle has other types of nodes.

    @pytest.mark.parametrize("phase", ["stablehlo", "sharded"])
    def test_zero1_in_every_form_in_a_file(self, phase: str) -> None:
        params, batch = inputs(1, odd=False)
        optimizer = optax.adam(1e-2)
        state = optimizer.init(params)
        lowered = pw.program(step_of(stages(2, 1), optimizer), zero1=True).lower(params, state, batch)
        module = ir.Module.parse(lowered.as_text(phase), make_context())
        with module.context, ir.Location.unknown():
            again = lower_module(module, "step", Options(zero1=True)).compile()
        theirs = jax.tree.leaves(again(*jax.tree.leaves((params, state, batch))))
        ours = jax.tree.leaves(lowered.compile()(params, state, batch))
        assert_equal(ours, theirs)
        assert [leaf.sharding.spec for leaf in ours] == [leaf.sharding.spec for leaf in theirs]

    def test_zero1_checkpoint_is_for_other_numbers_of_replicas(self, tmp_path: Path) -> None:
        pytest.importorskip("orbax.checkpoint", reason="orbax-checkpoint is not installed")
        params, batch = inputs(odd=False)
        optimizer = optax.adam(1e-2)
        state = optimizer.init(params)
        _, _, saved = pw.program(step_of(stages(2), optimizer), zero1=True)(params, state, batch)
        pw.checkpoint.save(tmp_path, saved, 1)
        for replicas, zero1 in ((1, True), (2, False), (4, True)):
            program = pw.program(step_of(stages(replicas), optimizer), zero1=zero1)
            compiled = program.lower(params, state, batch).compile()
            restored = pw.checkpoint.restore(tmp_path, compiled.out_info[2])
            assert_equal(restored, saved)
            leaves = jax.tree.leaves((params, restored, batch))
            brought, count = compiled.executable.transfer_arguments(leaves), len(jax.tree.leaves(params))
            assert all(brought[n] is leaves[n] for n in range(count, len(leaves) - 2))
            assert is_split(jax.tree.leaves(restored)[1]) == (zero1 and replicas > 1)


class TestWholeState:
    @pytest.mark.parametrize("dim", [0, 1])
    def test_zero1_refuses_an_update_that_mixes_elements(self, dim: int) -> None:
        """An update may mix elements of a dimension that is not cut; here only the first divides."""
        params, (x, y) = inputs(1, odd=False)
        params, batch = [{"w": params[0]["w"][:, :5], "b": np.zeros(5, np.float32)}], (x, y[:, :5])
        summed = optax.stateless_with_tree_map(lambda g, _: jnp.cumsum(g, axis=dim) if g.ndim == 2 else g)
        optimizer = optax.chain(optax.trace(0.9), summed, optax.trace(0.5))
        step, state = step_of(stages(2, 1), optimizer), optimizer.init(params)
        program = pw.program(step, zero1=True)
        if dim == 1:
            split = trained(program, params, state, batch)
            assert_close(split, trained(jax.jit(step_of([layer], optimizer)), params, state, batch), 1e-5)
            return
        with pytest.raises(
            ValueError,
            match=r"operation 'stablehlo.reduce_window' needs all of what 2 replicas would have blocks of: "
            r"zero1 cannot split the update of argument state\[0\].trace\[0\]\['w'\]",
        ):
            program.lower(params, state, batch)

    def test_zero1_names_each_operation_once_for_all_its_arguments(self) -> None:
        params, batch = inputs(2, odd=False)

        def mixed(g: Any, _: Any) -> Any:
            return jnp.cumsum(jnp.cumsum(g, axis=0), axis=1) if g.ndim == 2 else g[::-1]

        optimizer = optax.chain(optax.trace(0.9), optax.stateless_with_tree_map(mixed))
        program = pw.program(step_of(stages(2), optimizer), zero1=True)
        with pytest.raises(pw.ProgramError) as caught:
            program.lower(params, optimizer.init(params), batch)
        matrices, rows = sorted(str(caught.value).removeprefix("program 'step': ").split("\n"))
        advice = "make the update elementwise, or do not use zero1"
        for line, op, leaf in (
            (matrices, "stablehlo.reduce_window", "['w']"),
            (rows, "stablehlo.reverse", "['b']"),
        ):
            assert f"operation '{op}' needs all of what 2 replicas would have blocks of" in line
            named = f"state[0].trace[0]{leaf}, state[0].trace[1]{leaf}"
            assert f"zero1 cannot split the update of arguments {named}; {advice}" in line
            assert Path(__file__).name in line

    def test_zero1_remark_names_the_array_with_one_split_dimension(self) -> None:
        """Adafactor keeps means of rows and of columns; parameters are split along rows."""
        params, batch = inputs(1)
        optimizer = SUMMING["adafactor"]
        step, state = step_of(stages(2, 1), optimizer), optimizer.init(params)
        remarks = [d.message for d in pw.program(step, zero1=True).lower(params, state, batch).remarks]
        whole = [text.partition(" op ")[2] for text in remarks if " whole on all " in text]
        assert whole == [
            "leaves argument state[0].v_col[0]['w'] whole on all 2 replicas: dimension 0 goes together with "
            "dimensions 0 and 1 of argument params[0]['w'], and only one of them can be split",
            "leaves argument state[0].v[0]['scale'] whole on all 2 replicas: dimension 0 of size 1 is not "
            "divisible by 2 replicas",
        ]

    def test_zero1_keeps_other_state_whole(self) -> None:
        """A remark names a history of losses, which is no update of a gradient."""
        params, batch = inputs(1, odd=False)
        step = step_of(stages(2, 1), optax.adam(1e-2))

        def with_history(params, state, history, batch):
            value, params, state = step(params, state, batch)
            return params, state, jnp.roll(history, 1).at[0].set(value)

        arguments = params, optax.adam(1e-2).init(params), np.zeros(8, np.float32), batch
        compiled = pw.program(with_history, zero1=True).lower(*arguments)
        assert [d.message.partition(" op ")[2] for d in compiled.remarks if "whole on all" in d.message] == [
            "leaves argument history whole on all 2 replicas: "
            "it is not updated element by element with a sum over replicas"
        ]
        _, state, history = compiled.compile()(*arguments)
        assert not is_split(history)
        assert is_split(jax.tree.leaves(state)[1])

    def test_zero1_does_nothing_without_replicas(self) -> None:
        params, batch = inputs(odd=False)
        optimizer = optax.adam(1e-2)
        step, state = step_of(stages(1), optimizer), optimizer.init(params)
        assert_equal(
            pw.program(step, zero1=True)(params, state, batch), pw.program(step)(params, state, batch)
        )

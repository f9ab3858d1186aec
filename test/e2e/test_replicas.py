"""Programs on slices with replicas give what one `jax.jit` gives, and all replicas the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import preloaded
import pytest
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir

import pathways as pw
from pathways.compiler.from_mlir import lower_module
from pathways.dialect import make_context
from pathways.passes.pipeline import Options
from pathways.runtime.plan.plan import Launch, Plan, Transfer

WIDTH, ROWS, MICROBATCHES = 8, 24, 12


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def loss_of(layers: list[Callable[..., Any]]) -> Callable[..., Any]:
    def loss(params: list[Any], batch: Any) -> Any:
        x, y = batch
        for one, w in zip(layers, params, strict=True):
            x = one(w, jax.nn.gelu(x))
        return ((x - y) ** 2).mean()

    return loss


def step_of(layers: list[Callable[..., Any]]) -> Callable[..., Any]:
    loss = loss_of(layers)

    def step(params, batch):
        value, grads = pw.accumulate(jax.value_and_grad(loss), MICROBATCHES)(params, batch)
        return value, [w - 0.1 * g for w, g in zip(params, grads, strict=True)]

    return step


def placed(slices: list[Any], **shardings: Any) -> list[Callable[..., Any]]:
    return [pw.jit(layer, devices=s, **shardings) for s in slices]


def stages(replicas: int, count: int = 2, shape: tuple[int, ...] = (1,), per_slice: int = 1) -> list[Any]:
    """The slices of the layers, in their order."""
    devices = pw.make_virtual_device_set(replicas=replicas)
    axes = ("x", "y")[: len(shape)]
    return [devices.add_slice(shape, axes) for _ in range(count)] * per_slice


def inputs(count: int) -> tuple[list[Any], Any]:
    rng = np.random.default_rng(0)

    def array(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32) / 2

    return [array(WIDTH, WIDTH) for _ in range(count)], (array(ROWS, WIDTH), array(ROWS, WIDTH))


def copies(array: jax.Array) -> list[np.ndarray]:
    """What each replica has of a result that all of them have."""
    by_index: dict[str, list[np.ndarray]] = {}
    for shard in array.addressable_shards:
        by_index.setdefault(str(shard.index), []).append(np.asarray(shard.data))
    return list(by_index.values())


def exchanged_bytes(plan: Plan) -> int:
    """The bytes that replicas send to each other."""

    def original(name: str) -> str:
        return name.partition("_r")[0]

    transfers = [step for step in plan.steps if isinstance(step, Transfer)]
    return sum(plan.bytes_moved(t) for t in transfers if original(t.src) == original(t.dst))


def assert_same_bits(tree: Any) -> None:
    for leaf in jax.tree.leaves(tree):
        for same in copies(leaf):
            assert all(one.tobytes() == same[0].tobytes() for one in same)


def assert_trains_alike(train: Any, params: list[Any], batch: Any, steps: int) -> None:
    """Checks steps of two stages against `jax.jit`, and that the copies of all replicas are the same bits."""
    plain = jax.jit(step_of([layer, layer]))
    expected = params
    for _ in range(steps):
        value, params = train(params, batch)
        wanted, expected = plain(expected, batch)
        np.testing.assert_allclose(value, wanted, rtol=1e-5)
    for got, want in zip(params, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert_same_bits(params)


@pytest.mark.parametrize("schedule", [None, "gpipe", "1f1b", "eager", "zb-h1", "zb-h2"])
@pytest.mark.parametrize("replicas", [2, 3])
def test_steps_of_replicas_are_those_of_one_program(replicas: int, schedule: str | None) -> None:
    params, batch = inputs(2)
    train = pw.program(step_of(placed(stages(replicas))), schedule=schedule, donate_argnums=0)
    assert_trains_alike(train, params, batch, steps=3)


@pytest.mark.parametrize("schedule", ["interleaved-1f1b", "looped-bfs", "zb-v", "interleaved-zb"])
def test_several_stages_on_each_slice_of_a_replica(schedule: str) -> None:
    params, batch = inputs(4)
    slices = stages(2)
    slices = [*slices, *(slices[::-1] if schedule == "zb-v" else slices)]
    layers = [pw.jit(layer, devices=s, stage=n) for n, s in enumerate(slices)]
    train = pw.program(step_of(layers), schedule=schedule, donate_argnums=0)
    expected = jax.jit(step_of([layer] * 4))(params, batch)
    value, params = train(params, batch)
    np.testing.assert_allclose(value, expected[0], rtol=1e-5)
    for got, want in zip(params, expected[1], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P()])
def test_slices_of_several_devices_exchange_shards(spec: P) -> None:
    params, batch = inputs(2)
    slices = stages(2, shape=(2,))
    train = pw.program(step_of(placed(slices, in_shardings=(spec, P("x")))), donate_argnums=0)
    assert_trains_alike(train, params, batch, steps=2)
    compiled = train.executables[0].plan
    # The loss is on both devices of its slice.
    gradients = 2 * WIDTH * WIDTH * 4 + 2 * 4
    assert exchanged_bytes(compiled) == 2 * gradients


def test_copies_stay_equal_over_many_steps() -> None:
    params, batch = inputs(2)
    train = pw.program(step_of(placed(stages(4, count=1) * 2)), donate_argnums=0)
    for _ in range(200):
        value, params = train(params, batch)
    assert_same_bits((value, params))
    assert len(params[0].sharding.device_set) == 4


def test_a_schedule_file_is_for_each_replica(tmp_path: Path) -> None:
    params, batch = inputs(2)
    by_name = pw.program(step_of(placed(stages(2))), schedule="1f1b").lower(params, batch)
    (tmp_path / "step.mlir").write_text(by_name.as_text())
    flags = ["--emit-schedule", "-o", "order.csv"]
    written = preloaded.run("-m", "pathways.tools.pw_opt", "step.mlir", *flags, cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    by_file = pw.program(step_of(placed(stages(2))), schedule=tmp_path / "order.csv")
    value, new = by_file(params, batch)
    wanted, expected = by_name.compile()(params, batch)
    np.testing.assert_array_equal(value, wanted)
    for got, want in zip(new, expected, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_tied_gradient_is_exchanged_once() -> None:
    params, batch = inputs(1)
    first, last = placed(stages(2))

    def tied(one, other):
        def step(w, batch):
            def loss(w, batch):
                return ((other(w, one(w, batch[0])) - batch[1]) ** 2).mean()

            grads = pw.accumulate(jax.grad(loss), MICROBATCHES)(w, batch)
            return w - 0.1 * grads

        return step

    train = pw.program(tied(first, last))
    np.testing.assert_allclose(
        train(params[0], batch), jax.jit(tied(layer, layer))(params[0], batch), rtol=1e-5, atol=1e-6
    )
    compiled = train.executables[0].plan
    assert exchanged_bytes(compiled) == 2 * WIDTH * WIDTH * 4


@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_each_replica_exchanges_its_share_of_the_gradient(replicas: int) -> None:
    """2 (R - 1) / R of its bytes, but for what fills the pieces up, and for the loss."""
    params, batch = inputs(1)
    params = [np.tile(params[0], (16, 16))]
    batch = tuple(np.tile(array, (1, 16)) for array in batch)
    slices = stages(replicas, count=1)
    compiled = pw.program(step_of(placed(slices))).lower(params, batch).compile()
    sent: dict[str, int] = {}
    for transfer in (s for s in compiled.plan.steps if isinstance(s, Transfer)):
        sent[transfer.src] = sent.get(transfer.src, 0) + compiled.plan.bytes_moved(transfer)
    share = 2 * (replicas - 1) / replicas * (params[0].nbytes + 4)
    assert len(sent) == replicas
    assert all(share <= count <= share + 8 * replicas * 2 for count in sent.values())


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("shape", [(1,), (2,)])
def test_gradients_are_exchanged_in_half_of_the_bytes(replicas: int, shape: tuple[int, ...]) -> None:
    params, batch = inputs(1)
    params = [np.tile(params[0], (16, 16))]
    batch = tuple(np.tile(array, (1, 16)) for array in batch)
    step = step_of(placed(stages(replicas, count=1, shape=shape)))
    sent = {}
    for dtype in (None, "bfloat16"):
        program = pw.program(step, exchange_dtype=dtype)
        value, new = program(params, batch)
        sent[dtype] = exchanged_bytes(program.executables[0].plan)
        assert_same_bits(new)
    assert sent["bfloat16"] == pytest.approx(sent[None] / 2, rel=1e-3)
    wanted, expected = jax.jit(step_of([layer]))(params, batch)
    # A bfloat16 has 8 bits: terms and their sum are off by 2^-9 each.
    np.testing.assert_allclose(value, wanted, rtol=2**-8)
    update, exact = (np.asarray(w[0]) - params[0] for w in (new, expected))
    np.testing.assert_allclose(update, exact, rtol=0, atol=2**-7 * np.abs(exact).max())


def test_computations_are_shared_by_replicas() -> None:
    counts = []
    params, batch = inputs(2)
    for replicas in (2, 3, 4):
        compiled = pw.program(step_of(placed(stages(replicas)))).lower(params, batch).compile()
        counts.append(len(compiled.plan.computations))
    assert len(set(counts)) == 1


def test_replicas_compute_at_the_same_time() -> None:
    """Donated parameters bind no replica to another: a step takes as long as the microbatches of one."""
    params, batch = inputs(1)
    times = {"kinds": {"fwd": "0ms", "bwd": "1ms"}}
    steps = {}
    for replicas in (1, 2, 4):
        train = pw.program(step_of(placed(stages(replicas, count=1))), donate_argnums=0)
        steps[replicas] = train.lower(params, batch).compile().timeline(times).step_time
    assert steps[2] == pytest.approx(steps[1] / 2)
    assert steps[4] == pytest.approx(steps[1] / 4)


def test_no_parameter_crosses() -> None:
    params, batch = inputs(2)
    compiled = pw.program(step_of(placed(stages(2))), donate_argnums=0).lower(params, batch).compile()
    parameters = {slot for argument in compiled.plan.arguments[:2] for slot in argument.slots.values()}
    for step in compiled.plan.steps:
        assert not (isinstance(step, Transfer) and parameters & set(step.operands))
    for argument in compiled.plan.arguments[:2]:
        assert len(argument.slots) == 2
        ends = [
            step.slice
            for step in compiled.plan.steps
            if isinstance(step, Launch)
            and set(compiled.plan.donated_operands(step)) & set(argument.slots.values())
        ]
        assert sorted(ends) == sorted(argument.slots)


class TestResultsForCallers:
    def test_a_parameter_is_one_ordinary_array(self) -> None:
        params, batch = inputs(2)
        train = pw.program(step_of(placed(stages(2))), donate_argnums=0)
        _, new = train(params, batch)
        assert isinstance(new[0], jax.Array)
        assert new[0].sharding.mesh.axis_names == ("replica", "x")
        assert new[0].is_fully_replicated
        np.testing.assert_array_equal(np.asarray(new[0] + 1), np.asarray(new[0]) + 1)
        assert float(optax.tree.norm(new[:1])) > 0

    def test_what_the_caller_makes_of_it_is_taken_in_place(self) -> None:
        params, batch = inputs(2)
        train = pw.program(step_of(placed(stages(2))))
        _, new = train(params, batch)
        scaled = jax.tree.map(lambda w: w * 2, new)
        assert train.executables[0].transfer_in([*scaled, *batch])[0] is scaled[0]
        value, _ = train(scaled, batch)
        np.testing.assert_allclose(
            value, jax.jit(step_of([layer] * 2))(jax.device_get(scaled), batch)[0], rtol=1e-5
        )

    def test_a_donated_array_is_gone(self) -> None:
        params, batch = inputs(2)
        train = pw.program(step_of(placed(stages(2))), donate_argnums=0)
        _, new = train(params, batch)
        train(new, batch)
        assert new[0].is_deleted()
        with pytest.raises(RuntimeError, match="has been deleted"):
            train(new, batch)

    def test_numbers_and_results_of_other_programs_are_arguments(self) -> None:
        slices = stages(2)
        one, other = placed(slices)
        params, (x, _) = inputs(2)
        forward = pw.program(lambda params, x: other(params[1], one(params[0], x)))
        init = pw.program(lambda key: pw.jit(lambda k: jax.random.normal(k, (8, 8)), devices=slices[0])(key))
        w = init(jax.random.key(0))
        np.testing.assert_array_equal(w, jax.random.normal(jax.random.key(0), (8, 8)))
        assert_same_bits(w)
        plain = layer(params[1], layer(w, x))
        np.testing.assert_allclose(forward([w, params[1]], x), plain, rtol=1e-6)

    def test_what_all_slices_read_is_on_all_of_them(self) -> None:
        one, other = placed(stages(2))

        @pw.program(donate_argnums=0)
        def turn(state, x):
            count, scale = state["count"] + 1, state["scale"] * 2
            return {"count": count, "scale": scale}, other(x * scale, one(x, x * count))

        plain = jax.jit(
            lambda state, x: layer(x * state["scale"] * 2, layer(x, x * (state["count"] + 1))),
        )
        x = np.eye(WIDTH, dtype=np.float32)
        state, shown = {"count": 0, "scale": 1.0}, {"count": 0, "scale": 1.0}
        for n in range(3):
            state, y = turn(state, x)
            np.testing.assert_allclose(y, plain(shown, x), rtol=1e-6)
            shown = {"count": n + 1, "scale": 2.0 ** (n + 1)}
        assert int(state["count"]) == 3
        assert len(state["count"].sharding.device_set) == 2

    def test_keys_and_scalars(self) -> None:
        (slice,) = stages(2, count=1)

        @pw.jit(devices=slice)
        def noise(key, step):
            return jax.random.normal(key, (4,)) * step

        @pw.program
        def run(key, step):
            key, now = jax.random.split(key)
            return noise(now, step), key, step + 1

        key = jax.random.key(1)
        value, rest, step = run(key, 2)
        again, _, step = run(rest, step)
        one, two = jax.random.split(key)
        np.testing.assert_array_equal(value, jax.random.normal(two, (4,)) * 2)
        np.testing.assert_array_equal(again, jax.random.normal(jax.random.split(one)[1], (4,)) * 3)
        assert int(step) == 4


class TestBatches:
    def test_rows_are_split_among_replicas(self) -> None:
        params, batch = inputs(2)
        train = pw.program(step_of(placed(stages(3))))
        compiled = train.lower(params, batch).compile()
        args, _ = compiled.input_shardings
        assert args[1][0].spec == P("replica")
        rows = args[1][0].shard_shape((ROWS, WIDTH))
        assert rows == (ROWS // 3, WIDTH)

    def test_concatenated_results_lie_as_the_batch_does(self) -> None:
        params, (x, _) = inputs(1)
        (one,) = placed(stages(2, count=1))

        @pw.program
        def predict(w, x):
            return pw.accumulate(one, 4, reduce="concat")(w, x)

        result = predict(params[0], x)
        np.testing.assert_allclose(result, layer(params[0], x), rtol=1e-5)
        assert result.sharding.spec == P("replica")

    @pytest.mark.parametrize("shape", [(1,), (2,)])
    def test_what_else_reads_a_concatenation_gets_all_of_it(self, shape: tuple[int, ...]) -> None:
        params, (x, _) = inputs(1)
        (one,) = placed(stages(2, count=1, shape=shape), in_shardings=(P(), P("x")))

        @pw.program
        def predict(w, x):
            rows = pw.accumulate(one, 4, reduce="concat")(w, x)
            return rows, rows.max(axis=0)

        rows, most = predict(params[0], x)
        np.testing.assert_allclose(rows, layer(params[0], x), rtol=1e-5)
        np.testing.assert_allclose(most, layer(params[0], x).max(axis=0), rtol=1e-5)
        assert_same_bits(most)

    @pytest.mark.parametrize("shape", [(1,), (2,)])
    def test_a_batch_that_is_computed_is_cut_on_each_replica(self, shape: tuple[int, ...]) -> None:
        params, (x, _) = inputs(1)
        (one,) = placed(stages(2, count=1, shape=shape), in_shardings=(P(), P("x")))

        def total(f):
            def run(w, x):
                x = (x - x.mean()) / x.std()
                return pw.accumulate(lambda w, x: f(w, x).sum(), 4, reduce="sum")(w, x)

            return run

        np.testing.assert_allclose(
            pw.program(total(one))(params[0], x), jax.jit(total(layer))(params[0], x), rtol=1e-5
        )

    def test_one_microbatch_for_each_replica_is_plain_data_parallelism(self) -> None:
        params, batch = inputs(1)
        (one,) = placed(stages(MICROBATCHES // 3, count=1))
        train, plain = pw.program(step_of([one])), jax.jit(step_of([layer]))
        np.testing.assert_allclose(train(params, batch)[0], plain(params, batch)[0], rtol=1e-5)

    def test_loops_in_turn(self) -> None:
        params, batch = inputs(1)
        (one,) = placed(stages(2, count=1))

        def steps(f):
            step = step_of([f])

            def run(params, batch):
                losses = []
                for _ in range(3):
                    value, params = step(params, batch)
                    losses.append(value)
                return losses, params

            return run

        got, want = pw.program(steps(one))(params, batch), jax.jit(steps(layer))(params, batch)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want)

    def test_steps_in_a_scan(self) -> None:
        params, batch = inputs(2)
        layers = placed(stages(2))

        def steps(layers):
            step = step_of(layers)

            def run(params, batch):
                def turn(params, _):
                    value, params = step(params, batch)
                    return params, value

                return jax.lax.scan(turn, params, length=3)

            return run

        got, want = pw.program(steps(layers))(params, batch), jax.jit(steps([layer] * 2))(params, batch)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want)


@pytest.mark.parametrize("trust", [True, False])
def test_a_bundle_runs_as_replicas(tmp_path: Path, trust: bool) -> None:
    params, batch = inputs(2)
    slices = [*stages(2, count=1), *stages(2, count=1, shape=(2,))]
    compiled = pw.program(step_of(placed(slices)), donate_argnums=0).lower(params, batch).compile()
    compiled.save(tmp_path / "step.pwb")
    loaded = pw.load(tmp_path / "step.pwb", trust=trust)
    value, new = loaded(params, batch)
    expected = compiled(params, batch)
    np.testing.assert_array_equal(value, expected[0])
    for got, want in zip(new, expected[1], strict=True):
        np.testing.assert_array_equal(got, want)
        assert got.sharding.mesh.axis_names == ("replica", "x")
    loaded(new, batch)


@pytest.mark.parametrize("phase", ["stablehlo", "placed", "sharded", "scheduled"])
def test_every_form_in_a_file_runs_as_replicas(phase: str) -> None:
    params, batch = inputs(1)
    lowered = pw.program(step_of(placed(stages(2, count=1)))).lower(params, batch)
    module = ir.Module.parse(lowered.as_text(phase), make_context())
    with module.context, ir.Location.unknown():
        again = lower_module(module, "step", Options()).compile()
    ours, theirs = jax.tree.leaves(again(*params, *batch)), jax.tree.leaves(lowered.compile()(params, batch))
    for got, want in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(got, want)
        assert got.sharding.spec == want.sharding.spec


def test_donated_parameters_that_no_result_takes_are_named() -> None:
    (one,) = placed(stages(2, count=1))
    program = pw.program(lambda w, x: one(w, x).sum(), donate_argnums=0)
    with pytest.warns(pw.PathwaysWarning, match=r"not usable: w of 8x8xf32; no result"):
        program.lower(jnp.ones((8, 8)), jnp.ones((2, 8)))


def test_a_checkpoint_is_for_any_number_of_replicas(tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint", reason="orbax-checkpoint is not installed")
    params, batch = inputs(2)
    programs = {n: pw.program(step_of(placed(stages(n)))) for n in (1, 2)}
    _, saved = programs[2](params, batch)
    pw.checkpoint.save(tmp_path, saved, 1)
    for replicas, program in programs.items():
        compiled = program.lower(params, batch).compile()
        restored = pw.checkpoint.restore(tmp_path, compiled.out_info[1])
        assert len(restored[0].sharding.device_set) == replicas
        for got, want in zip(restored, saved, strict=True):
            np.testing.assert_array_equal(got, want)
        assert compiled.executable.transfer_in([*restored, *batch])[0] is restored[0]


class TestRefusals:
    def test_microbatches_that_do_not_divide(self) -> None:
        params, batch = inputs(2)
        program = pw.program(step_of(placed(stages(5))))
        with pytest.raises(ValueError, match="has 12 microbatches, which is not divisible by 5 replicas"):
            program.lower(params, batch)

    def test_slices_with_different_numbers_of_replicas(self) -> None:
        (one,), (other,) = placed(stages(2, count=1)), placed(stages(3, count=1))
        with pytest.raises(ValueError, match=r"asks for 3 replicas, but @s.* for 2"):
            pw.program(lambda w, x: other(w, one(w, x))).lower(jnp.ones((8, 8)), jnp.ones((2, 8)))

    def test_dtypes_of_an_exchange(self) -> None:
        with pytest.raises(ValueError, match="exchange_dtype must be one of bfloat16, float16, float32, got"):
            pw.program(lambda x: x, exchange_dtype="int8")

    def test_numbers_of_replicas(self) -> None:
        with pytest.raises(ValueError, match="replicas=0: expected 1 to"):
            pw.make_virtual_device_set(replicas=0)
        with pytest.raises(TypeError, match=r"replicas=2\.0: expected an integer"):
            pw.make_virtual_device_set(replicas=2.0)
        with pytest.raises(ValueError, match="axis name 'replica'"):
            pw.make_virtual_device_set(replicas=2).add_slice((2,), ("replica",))


def test_prints_outside_of_loops_are_those_of_one_replica(capfd: pytest.CaptureFixture[str]) -> None:
    params, batch = inputs(1)
    (one,) = placed(stages(2, count=1))

    @pw.program
    def train(params, batch):
        value, grads = pw.accumulate(jax.value_and_grad(loss_of([one])), 4)(params, batch)
        jax.debug.print("loss {}", value)
        return [w - 0.1 * g for w, g in zip(params, grads, strict=True)]

    jax.block_until_ready(train(params, batch))
    jax.effects_barrier()
    assert capfd.readouterr().out.count("loss") == 1

"""Programs on slices with replicas: values of one `jax.jit`, and the same bits on all replicas."""

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
from check import assert_close, assert_copies_equal, assert_equal, assert_trains_as_jax
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from models import layer, place_on, squared_error, training_step

import pathways as pw
from pathways.compiler.from_mlir import lower_module
from pathways.dialect import make_context
from pathways.passes.pipeline import Options
from pathways.runtime.plan.plan import Launch, Plan, Transfer

WIDTH, ROWS, MICROBATCHES = 8, 24, 12


def step_of(layers: list[Callable[..., Any]]) -> Callable[..., Any]:
    """Returns a training step with an unplaced operation in front of each layer."""
    bent = [lambda w, x, one=one: one(w, jax.nn.gelu(x)) for one in layers]
    return training_step(squared_error(bent), MICROBATCHES)


def stages(replicas: int, count: int = 2, shape: tuple[int, ...] = (1,)) -> list[Any]:
    """Returns the slices of the layers, in their order."""
    devices = pw.make_virtual_device_set(replicas=replicas)
    return [devices.add_slice(shape, ("x",)) for _ in range(count)]


def inputs(count: int) -> tuple[list[Any], Any]:
    rng = np.random.default_rng(0)

    def array(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32) / 2

    return [array(WIDTH, WIDTH) for _ in range(count)], (array(ROWS, WIDTH), array(ROWS, WIDTH))


def exchanged_bytes(plan: Plan) -> int:
    """Returns the bytes that replicas send to each other."""

    def original(name: str) -> str:
        return name.partition("_r")[0]

    transfers = [step for step in plan.steps if isinstance(step, Transfer)]
    return sum(plan.bytes_moved(t) for t in transfers if original(t.src) == original(t.dst))


@pytest.mark.feature("replicas", "values")
@pytest.mark.parametrize(
    ("replicas", "schedule"), [(2, None), (3, "gpipe"), (2, "1f1b"), (4, "eager"), (3, "zb-h1"), (2, "zb-h2")]
)
def test_replicas_train_as_one_program(replicas: int, schedule: str | None) -> None:
    params, batch = inputs(2)
    train = pw.program(step_of(place_on(stages(replicas))), schedule=schedule, donate_argnums=0)
    assert_trains_as_jax(train, step_of([layer] * 2), [params], batch)


@pytest.mark.parametrize("schedule", ["interleaved-1f1b", "looped-bfs", "zb-v", "interleaved-zb"])
def test_replicas_with_several_stages_on_a_slice(schedule: str) -> None:
    params, batch = inputs(4)
    slices = stages(2)
    slices = [*slices, *(slices[::-1] if schedule == "zb-v" else slices)]
    layers = [pw.jit(layer, devices=s, stage=n) for n, s in enumerate(slices)]
    train = pw.program(step_of(layers), schedule=schedule, donate_argnums=0)
    assert_trains_as_jax(train, step_of([layer] * 4), [params], batch, steps=1)


@pytest.mark.parametrize("spec", [P(None, "x"), P()])
def test_replicas_of_several_devices_exchange_shards(spec: P) -> None:
    params, batch = inputs(2)
    layers = place_on(stages(2, shape=(2,)), in_shardings=(spec, P("x")))
    train = pw.program(step_of(layers), donate_argnums=0)
    assert_trains_as_jax(train, step_of([layer] * 2), [params], batch)
    compiled = train.executables[0].plan
    # The loss is on both devices of its slice.
    gradients = 2 * WIDTH * WIDTH * 4 + 2 * 4
    assert exchanged_bytes(compiled) == 2 * gradients


def test_replicas_stay_equal_over_many_steps() -> None:
    params, batch = inputs(2)
    train = pw.program(step_of(place_on(stages(4, count=1) * 2)), donate_argnums=0)
    for _ in range(50):
        value, params = train(params, batch)
    assert_copies_equal((value, params))
    assert len(params[0].sharding.device_set) == 4


@pytest.mark.process
def test_replicas_follow_a_schedule_file_each(tmp_path: Path) -> None:
    params, batch = inputs(2)
    by_name = pw.program(step_of(place_on(stages(2))), schedule="1f1b").lower(params, batch)
    (tmp_path / "step.mlir").write_text(by_name.as_text())
    flags = ["--emit-schedule", "-o", "order.csv"]
    written = preloaded.run("-m", "pathways.tools.pw_opt", "step.mlir", *flags, cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    by_file = pw.program(step_of(place_on(stages(2))), schedule=tmp_path / "order.csv")
    assert_equal(by_file(params, batch), by_name.compile()(params, batch))


def test_replicas_exchange_a_tied_gradient_once() -> None:
    params, batch = inputs(1)
    first, last = place_on(stages(2))

    def tied(one, other):
        def step(w, batch):
            def loss(w, batch):
                return ((other(w, one(w, batch[0])) - batch[1]) ** 2).mean()

            grads = pw.accumulate(jax.grad(loss), MICROBATCHES)(w, batch)
            return w - 0.1 * grads

        return step

    train = pw.program(tied(first, last))
    assert_close(train(params[0], batch), jax.jit(tied(layer, layer))(params[0], batch))
    compiled = train.executables[0].plan
    assert exchanged_bytes(compiled) == 2 * WIDTH * WIDTH * 4


def test_replicas_exchange_their_shares_of_the_gradient() -> None:
    """Replicas send 2 (R - 1) / R of its bytes, plus the padding of the pieces and the loss."""
    replicas = 3
    params, batch = inputs(1)
    params = [np.tile(params[0], (16, 16))]
    batch = tuple(np.tile(array, (1, 16)) for array in batch)
    slices = stages(replicas, count=1)
    compiled = pw.program(step_of(place_on(slices))).lower(params, batch).compile()
    sent: dict[str, int] = {}
    for transfer in (s for s in compiled.plan.steps if isinstance(s, Transfer)):
        sent[transfer.src] = sent.get(transfer.src, 0) + compiled.plan.bytes_moved(transfer)
    share = 2 * (replicas - 1) / replicas * (params[0].nbytes + 4)
    assert len(sent) == replicas
    assert all(share <= count <= share + 8 * replicas * 2 for count in sent.values())


def test_replicas_exchange_gradients_in_half_the_bytes() -> None:
    params, batch = inputs(1)
    params = [np.tile(params[0], (16, 16))]
    batch = tuple(np.tile(array, (1, 16)) for array in batch)
    step = step_of(place_on(stages(2, count=1, shape=(2,))))
    sent = {}
    for dtype in (None, "bfloat16"):
        program = pw.program(step, exchange_dtype=dtype)
        value, new = program(params, batch)
        sent[dtype] = exchanged_bytes(program.executables[0].plan)
        assert_copies_equal(new)
    assert sent["bfloat16"] == pytest.approx(sent[None] / 2, rel=1e-3)
    wanted, expected = jax.jit(step_of([layer]))(params, batch)
    # A bfloat16 has 8 bits: terms and their sum are off by 2^-9 each.
    np.testing.assert_allclose(value, wanted, rtol=2**-8)
    update, exact = (np.asarray(w[0]) - params[0] for w in (new, expected))
    np.testing.assert_allclose(update, exact, rtol=0, atol=2**-7 * np.abs(exact).max())


def test_replicas_share_computations_and_run_at_the_same_time() -> None:
    """Donated parameters do not delay other replicas: a step takes as long as the microbatches of one."""
    params, batch = inputs(1)
    times = {"kinds": {"fwd": "0ms", "bwd": "1ms"}}
    steps, computations = {}, {}
    for replicas in (1, 2, 4):
        train = pw.program(step_of(place_on(stages(replicas, count=1))), donate_argnums=0)
        compiled = train.lower(params, batch).compile()
        steps[replicas] = compiled.timeline(times).step_time
        computations[replicas] = len(compiled.plan.computations)
    assert computations[2] == computations[4]
    assert steps[2] == pytest.approx(steps[1] / 2)
    assert steps[4] == pytest.approx(steps[1] / 4)


def test_replicas_send_no_parameter() -> None:
    params, batch = inputs(2)
    compiled = pw.program(step_of(place_on(stages(2))), donate_argnums=0).lower(params, batch).compile()
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


class TestResults:
    def test_replicas_return_a_parameter_as_one_array(self) -> None:
        params, batch = inputs(2)
        train = pw.program(step_of(place_on(stages(2))), donate_argnums=0)
        _, new = train(params, batch)
        assert isinstance(new[0], jax.Array)
        assert new[0].sharding.mesh.axis_names == ("replica", "x")
        assert new[0].is_fully_replicated
        np.testing.assert_array_equal(np.asarray(new[0] + 1), np.asarray(new[0]) + 1)
        assert float(optax.tree.norm(new[:1])) > 0

    def test_replicas_accept_arrays_of_the_caller_in_place(self) -> None:
        params, batch = inputs(2)
        train = pw.program(step_of(place_on(stages(2))), donate_argnums=0)
        _, new = train(params, batch)
        scaled = jax.tree.map(lambda w: w * 2, new)
        # Nothing reads `scaled`: a view of NumPy would keep its memory from being donated.
        wanted = jax.jit(step_of([layer] * 2))([2 * w for w in jax.device_get(new)], batch)[0]
        assert train.executables[0].transfer_arguments([*scaled, *batch])[0] is scaled[0]
        assert_close(train(scaled, batch)[0], wanted)
        assert scaled[0].is_deleted()
        with pytest.raises(RuntimeError, match="has been deleted"):
            train(scaled, batch)

    def test_replicas_accept_results_of_other_programs(self) -> None:
        slices = stages(2)
        one, other = place_on(slices)
        params, (x, _) = inputs(2)
        forward = pw.program(lambda params, x: other(params[1], one(params[0], x)))
        init = pw.program(lambda key: pw.jit(lambda k: jax.random.normal(k, (8, 8)), devices=slices[0])(key))
        w = init(jax.random.key(0))
        assert_equal(w, jax.random.normal(jax.random.key(0), (8, 8)))
        assert_copies_equal(w)
        plain = layer(params[1], layer(w, x))
        assert_close(forward([w, params[1]], x), plain)

    def test_replicas_mirror_values_that_all_slices_read(self) -> None:
        one, other = place_on(stages(2))

        @pw.program(donate_argnums=0)
        def advance(state, x):
            count, scale = state["count"] + 1, state["scale"] * 2
            return {"count": count, "scale": scale}, other(x * scale, one(x, x * count))

        plain = jax.jit(lambda state, x: layer(x * state["scale"] * 2, layer(x, x * (state["count"] + 1))))
        x = np.eye(WIDTH, dtype=np.float32)
        state, shown = {"count": 0, "scale": 1.0}, {"count": 0, "scale": 1.0}
        for n in range(3):
            state, y = advance(state, x)
            assert_close(y, plain(shown, x))
            shown = {"count": n + 1, "scale": 2.0 ** (n + 1)}
        assert int(state["count"]) == 3
        assert len(state["count"].sharding.device_set) == 2

    def test_replicas_with_keys_and_scalars(self) -> None:
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
        assert_equal(value, jax.random.normal(two, (4,)) * 2)
        assert_equal(again, jax.random.normal(jax.random.split(one)[1], (4,)) * 3)
        assert int(step) == 4


class TestBatches:
    def test_replicas_split_rows(self) -> None:
        params, batch = inputs(2)
        train = pw.program(step_of(place_on(stages(3))))
        compiled = train.lower(params, batch).compile()
        args, _ = compiled.input_shardings
        assert args[1][0].spec == P("replica")
        rows = args[1][0].shard_shape((ROWS, WIDTH))
        assert rows == (ROWS // 3, WIDTH)

    def test_replicas_shard_concatenated_results_as_the_batch(self) -> None:
        params, (x, _) = inputs(1)
        (one,) = place_on(stages(2, count=1))

        @pw.program
        def predict(w, x):
            return pw.accumulate(one, 4, reduce="concat")(w, x)

        result = predict(params[0], x)
        assert_close(result, layer(params[0], x))
        assert result.sharding.spec == P("replica")

    def test_replicas_gather_a_concatenation_for_other_readers(self) -> None:
        params, (x, _) = inputs(1)
        (one,) = place_on(stages(2, count=1, shape=(2,)), in_shardings=(P(), P("x")))

        @pw.program
        def predict(w, x):
            rows = pw.accumulate(one, 4, reduce="concat")(w, x)
            return rows, rows.max(axis=0)

        results = predict(params[0], x)
        rows = jax.jit(layer)(params[0], x)
        assert_close(results, (rows, rows.max(axis=0)))
        assert_copies_equal(results[1])

    def test_replicas_cut_a_computed_batch(self) -> None:
        params, (x, _) = inputs(1)
        (one,) = place_on(stages(2, count=1, shape=(2,)), in_shardings=(P(), P("x")))

        def total(f):
            def run(w, x):
                x = (x - x.mean()) / x.std()
                return pw.accumulate(lambda w, x: f(w, x).sum(), 4, reduce="sum")(w, x)

            return run

        assert_close(pw.program(total(one))(params[0], x), jax.jit(total(layer))(params[0], x), 1e-5)

    def test_replicas_with_one_microbatch_each(self) -> None:
        params, batch = inputs(1)
        (one,) = place_on(stages(MICROBATCHES // 3, count=1))
        train, plain = pw.program(step_of([one])), jax.jit(step_of([layer]))
        assert_close(train(params, batch), plain(params, batch))

    def test_replicas_run_loops_one_after_the_other(self) -> None:
        params, batch = inputs(1)
        (one,) = place_on(stages(2, count=1))

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
        assert_close(got, want)

    def test_replicas_train_in_a_scan(self) -> None:
        params, batch = inputs(2)
        layers = place_on(stages(2))

        def steps(layers):
            step = step_of(layers)

            def run(params, batch):
                def body(params, _):
                    value, params = step(params, batch)
                    return params, value

                return jax.lax.scan(body, params, length=3)

            return run

        got, want = pw.program(steps(layers))(params, batch), jax.jit(steps([layer] * 2))(params, batch)
        assert_close(got, want)


TABLE = np.arange(300, dtype=np.float32)


@pytest.mark.parametrize(
    "function",
    [
        lambda f, g, x: (jnp.asarray(TABLE), f(x)),
        lambda f, g, x: (jnp.asarray(TABLE), g(f(x)), jnp.asarray(TABLE)),
        lambda f, g, x: (f(jnp.asarray(TABLE)), g(jnp.asarray(TABLE)), jnp.asarray(TABLE)),
        lambda f, g, x: (jax.lax.scan(lambda y, row: (g(f(y)) + row, y), x, jnp.asarray(TABLE)), TABLE),
        lambda f, g, x: (pw.accumulate(lambda x: g(f(x)).sum(), 2, batch_argnums=0)(x), TABLE),
    ],
    ids=["beside_another", "twice", "read", "beside_a_scan", "beside_microbatches"],
)
def test_replicas_return_a_closed_over_array(function: Callable[..., Any]) -> None:
    """A large constant is a hidden argument, which all replicas have."""
    placed = [pw.jit(f, devices=s) for f, s in zip((jnp.sin, jnp.cos), stages(2), strict=True)]
    x = np.ones(4, np.float32)
    returned = pw.program(lambda x: jax.tree.map(jnp.asarray, function(*placed, x)))(x)
    assert_close(returned, jax.jit(lambda x: function(jnp.sin, jnp.cos, x))(x))
    assert_copies_equal(returned)


@pytest.mark.process
def test_replicas_in_a_bundle(tmp_path: Path) -> None:
    params, batch = inputs(2)
    slices = [*stages(2, count=1), *stages(2, count=1, shape=(2,))]
    compiled = pw.program(step_of(place_on(slices)), donate_argnums=0).lower(params, batch).compile()
    compiled.save(tmp_path / "step.pwb")
    expected = compiled(params, batch)
    for trust in (True, False):
        loaded = pw.load(tmp_path / "step.pwb", trust=trust)
        value, new = loaded(params, batch)
        assert_equal((value, new), expected)
        assert all(w.sharding.mesh.axis_names == ("replica", "x") for w in new)
        loaded(new, batch)


@pytest.mark.parametrize("phase", ["placed", "scheduled"])
def test_replicas_in_every_form_in_a_file(phase: str) -> None:
    params, batch = inputs(1)
    lowered = pw.program(step_of(place_on(stages(2, count=1)))).lower(params, batch)
    module = ir.Module.parse(lowered.as_text(phase), make_context())
    with module.context, ir.Location.unknown():
        again = lower_module(module, "step", Options()).compile()
    ours, theirs = jax.tree.leaves(again(*params, *batch)), jax.tree.leaves(lowered.compile()(params, batch))
    assert_equal(ours, theirs)
    assert [leaf.sharding.spec for leaf in ours] == [leaf.sharding.spec for leaf in theirs]


def test_replicas_warn_of_unusable_donated_parameters() -> None:
    (one,) = place_on(stages(2, count=1))
    program = pw.program(lambda w, x: one(w, x).sum(), donate_argnums=0)
    with pytest.warns(pw.PathwaysWarning, match=r"not usable: w of 8x8xf32; no result"):
        program.lower(jnp.ones((8, 8)), jnp.ones((2, 8)))


def test_replicas_restore_checkpoints_of_other_numbers(tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint", reason="orbax-checkpoint is not installed")
    params, batch = inputs(2)
    programs = {n: pw.program(step_of(place_on(stages(n)))) for n in (1, 2)}
    _, saved = programs[2](params, batch)
    pw.checkpoint.save(tmp_path, saved, 1)
    for replicas, program in programs.items():
        compiled = program.lower(params, batch).compile()
        restored = pw.checkpoint.restore(tmp_path, compiled.out_info[1])
        assert len(restored[0].sharding.device_set) == replicas
        assert_equal(restored, saved)
        assert compiled.executable.transfer_arguments([*restored, *batch])[0] is restored[0]


class TestRefusals:
    @pytest.mark.feature("replicas", "error")
    def test_replicas_refuse_microbatches_that_do_not_divide(self) -> None:
        params, batch = inputs(2)
        program = pw.program(step_of(place_on(stages(5))))
        with pytest.raises(ValueError, match="has 12 microbatches, which is not divisible by 5 replicas"):
            program.lower(params, batch)

    def test_replicas_refuse_different_numbers_of_them(self) -> None:
        (one,), (other,) = place_on(stages(2, count=1)), place_on(stages(3, count=1))
        with pytest.raises(ValueError, match=r"asks for 3 replicas, but @s.* for 2"):
            pw.program(lambda w, x: other(w, one(w, x))).lower(jnp.ones((8, 8)), jnp.ones((2, 8)))

    def test_replicas_refuse_dtypes_of_an_exchange(self) -> None:
        with pytest.raises(ValueError, match="exchange_dtype must be one of bfloat16, float16, float32, got"):
            pw.program(lambda x: x, exchange_dtype="int8")

    def test_replicas_refuse_numbers_of_them(self) -> None:
        with pytest.raises(ValueError, match="replicas=0: expected 1 to"):
            pw.make_virtual_device_set(replicas=0)
        with pytest.raises(TypeError, match=r"replicas=2\.0: expected an integer"):
            pw.make_virtual_device_set(replicas=2.0)
        with pytest.raises(ValueError, match="axis name 'replica'"):
            pw.make_virtual_device_set(replicas=2).add_slice((2,), ("replica",))


def test_replicas_print_once_outside_of_loops(capfd: pytest.CaptureFixture[str]) -> None:
    params, batch = inputs(1)
    (one,) = place_on(stages(2, count=1))

    @pw.program
    def train(params, batch):
        value, grads = pw.accumulate(jax.value_and_grad(squared_error([one])), 4)(params, batch)
        jax.debug.print("loss {}", value)
        return [w - 0.1 * g for w, g in zip(params, grads, strict=True)]

    jax.block_until_ready(train(params, batch))
    jax.effects_barrier()
    assert capfd.readouterr().out.count("loss") == 1

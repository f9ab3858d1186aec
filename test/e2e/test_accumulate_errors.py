"""Errors and warnings of `pw.accumulate`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import apply, layer, place_on

import pathways as pw

Fun = Callable[..., Any]
W, X = np.eye(4, dtype=np.float32), np.ones((8, 4), np.float32)


@pytest.fixture
def stages() -> list[Fun]:
    devices = pw.make_virtual_device_set()
    return place_on(devices.add_slice(1, "x") for _ in range(2))


@pytest.fixture
def loss(stages: list[Fun]) -> Fun:
    """Returns a loss over two slices, for programs."""
    return lambda w, x: total_of(stages, w, x)


def total_of(stages: list[Fun], w: jax.Array, x: jax.Array) -> jax.Array:
    return apply(stages, [w] * len(stages), x).sum()


def total(w: jax.Array, x: jax.Array) -> jax.Array:
    return total_of([layer, layer], w, x)


@pytest.fixture(params=["in a program", "outside of programs"])
def run(request: pytest.FixtureRequest, stages: list[Fun]) -> Fun:
    """Calls a function where it is a pipeline, and where it is a scan."""
    if request.param == "in a program":
        return lambda fun, *args: pw.program(fun)(*args)
    return lambda fun, *args: fun(*args)


def refused(error: type[Exception], message: str) -> Any:
    return pytest.raises(error, match=re.escape(message))


# At once, where the loop is created.


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("text", 2), TypeError, "pw.accumulate expects a function, got str"),
        ((total, 2.0), TypeError, "num_microbatches must be an integer, got 2.0"),
        ((total, np.float32(2)), TypeError, "num_microbatches must be an integer, got np.float32(2.0)"),
        ((total, True), TypeError, "num_microbatches must be an integer, got True"),
        ((total, 0), ValueError, "num_microbatches must be at least 1, got 0"),
        ((total, 20_000), ValueError, "num_microbatches must be at most 16384, got 20000"),
    ],
)
def test_accumulate_refuses_what_is_no_function_or_no_number(arguments, error, message):
    with refused(error, message):
        pw.accumulate(*arguments)


@pytest.mark.parametrize(
    ("schedule", "error", "message"),
    [
        ("zb-h3", ValueError, "schedule is unknown policy 'zb-h3'; did you mean 'zb-h2'?"),
        ("1f1b(max=2)", ValueError, "schedule is '1f1b(max=2)': option 'max' is unknown"),
        (
            "order.csv",
            ValueError,
            "a file schedules all loops of a program: use pw.program(schedule='order.csv')",
        ),
        (3, TypeError, "schedule must be a policy, got int"),
    ],
)
def test_accumulate_refuses_unknown_policy_with_its_line(schedule, error, message):
    with pytest.raises(error, match=re.escape(message)) as raised:
        pw.accumulate(total, 2, schedule=schedule)
    assert re.match(r"pw.accumulate of 'total' at .*test_accumulate_errors.py:\d+", str(raised.value))


@pytest.mark.parametrize("reduce", ["max", {"loss": "mean", "rows": "max"}, ("sum", "max")])
def test_accumulate_refuses_unknown_reduction(reduce):
    with refused(ValueError, "reduce must be one of mean, sum, concat for each result, got 'max'"):
        pw.accumulate(total, 2, reduce=reduce)


# The batch.


@pytest.mark.feature("pipelines", "error")
def test_accumulate_refuses_batch_that_does_not_divide(run):
    message = (
        "argument 1['x'][0] of 'f' has shape (8, 4): its leading axis of 8 is not divisible into 3 micro"
    )

    def f(w, batch):
        return total(w, batch["x"][0])

    with refused(ValueError, message):
        run(pw.accumulate(f, 3), W, {"x": [X]})


def test_accumulate_refuses_scalar_in_batch(run):
    with refused(ValueError, "argument 1[1] of 'total' is a scalar: a batch is split along its leading axis"):
        run(pw.accumulate(total, 2), W, (X, 2.0))


def test_accumulate_refuses_call_without_batch(run):
    with refused(
        ValueError, "'total': no batch to cut: called with 1 positional arguments, and all but the first are"
    ):
        run(pw.accumulate(total, 2), W)
    with refused(ValueError, "no batch to cut: called with 1 positional arguments"):
        # Keyword arguments are not split.
        run(lambda w, x: pw.accumulate(total, 2)(w, x=x), W, X)
    for argnums in (2, -3, (1, 5), ()):
        with refused(ValueError, "no batch to cut: called with 2 positional arguments"):
            run(pw.accumulate(total, 2, batch_argnums=argnums), W, X)


def test_accumulate_refuses_batch_without_arrays(run):
    with refused(ValueError, "pw.accumulate of 'total': no batch to cut: it contains no array"):
        run(pw.accumulate(total, 2), W, {"x": []})


# The results.


def test_accumulate_refuses_reductions_unlike_results(run):
    message = "reduce must be a tree like that of the results or a prefix of one"
    with refused(ValueError, f"'total': {message}: it is (*, *), the results are *"):
        run(pw.accumulate(total, 2, reduce=("mean", "sum")), W, X)

    def outputs(w, x):
        return {"loss": total(w, x), "rows": x}

    with refused(ValueError, f"'outputs': {message}: it is {{'loss': *}}, the results are"):
        run(pw.accumulate(outputs, 2, reduce={"loss": "mean"}), W, X)
    with refused(ValueError, f"{message}: it is None"):
        run(pw.accumulate(outputs, 2, reduce=None), W, X)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("mean", "result['count'] of type int32[] has no mean in its own dtype; use reduce='sum'"),
        ("concat", "result['count'] of type int32[] is a scalar and cannot be concatenated; give it an axis"),
    ],
)
def test_accumulate_refuses_reduction_of_integers_or_scalars(run, kind, message):
    def outputs(w, x):
        return {"count": jnp.sum(x > 0, dtype=jnp.int32), "rows": x}

    with refused(ValueError, f"pw.accumulate of 'outputs': {message}"):
        run(pw.accumulate(outputs, 2, reduce={"count": kind, "rows": "concat"}), W, X)


def test_accumulate_refuses_sum_of_booleans_or_keys(run):
    with refused(ValueError, "result of type bool[4, 4] cannot be summed; use reduce='concat'"):
        run(pw.accumulate(lambda w, x: x > 0, 2, reduce="sum"), W, X)
    with refused(ValueError, "result of type key<fry>[1] cannot be summed; use reduce='concat'"):
        run(pw.accumulate(lambda w, k: k, 2, reduce="sum"), W, jax.random.split(jax.random.key(0)))


# Where it stands.


def test_accumulate_refuses_loop_inside_loop(run):
    def inner(w, x):
        return total(w, x)

    def outer(w, x):
        return pw.accumulate(inner, 2)(w, x)

    message = (
        "pw.accumulate of 'inner' is called inside pw.accumulate of 'outer': loops over microbatches cannot "
        "be nested; see the recipe 'Two towers' of docs/recipes.md"
    )
    with refused(ValueError, message):
        run(pw.accumulate(outer, 2), W, X)


def test_accumulate_refuses_its_gradient(run):
    message = "pw.accumulate cannot be differentiated: take the gradient inside the function that it is given"
    mean = pw.accumulate(total, 2)
    for argnums in (0, 1):
        with refused(TypeError, message):
            run(jax.grad(mean, argnums), W, X)
    with refused(TypeError, message):
        run(
            lambda w, x: jax.jvp(
                lambda w: pw.accumulate(lambda x: total(w, x), 2, batch_argnums=0)(x), [w], [w]
            ),
            W,
            X,
        )


def test_accumulate_beside_gradient(stages, loss):
    """A loop that is not differentiated may be next to a gradient."""

    def step(w, x):
        scale = pw.accumulate(loss, 2)(w, x)
        return jax.grad(lambda w: scale * total_of(stages, w, x))(w)

    wanted = jax.grad(lambda w: total(W, X) / 2 * total(w, X))(jnp.asarray(W))
    np.testing.assert_allclose(pw.program(step)(W, X), wanted, rtol=1e-5)


def test_accumulate_refuses_placed_function_outside_program(loss):
    with refused(TypeError, "was called under a JAX transformation outside a program; put the outermost"):
        pw.accumulate(loss, 2)(W, X)


def test_accumulate_refuses_batch_under_vmap(loss):
    message = "pw.accumulate of 'loss' is under jax.vmap: apply jax.vmap inside the function 'loss'"

    def named(w, x):
        return loss(w, x)

    named.__name__ = "loss"
    batches = np.stack([X, X, X])
    with refused(pw.ProgramError, message):
        pw.program(jax.vmap(pw.accumulate(named, 2), in_axes=(None, 0)))(W, batches)
    with refused(pw.ProgramError, message.replace("loss", "outputs")):

        def outputs(w, x):
            return loss(w, x), w

        pw.program(jax.vmap(pw.accumulate(outputs, 2, reduce=("sum", "concat")), in_axes=(0, None)))(
            batches[:, :4], X
        )


def test_accumulate_accepts_parameters_under_vmap(loss):
    many = np.stack([W, 2 * W, -W])
    got = pw.program(jax.vmap(pw.accumulate(loss, 2), in_axes=(0, None)))(many, X)
    np.testing.assert_allclose(got, jax.vmap(pw.accumulate(total, 2), in_axes=(0, None))(many, X), rtol=1e-6)


@pytest.mark.parametrize("construct", ["cond", "while"])
def test_accumulate_refuses_loop_or_branch_around_it(stages, construct):
    """A second loop is refused also where it touches one slice only, since either could be the pipeline."""
    mean = pw.accumulate(lambda w, x: stages[0](w, x).sum(), 2)

    def step(w, x):
        if construct == "cond":
            return jax.lax.cond(x.sum() > 0, lambda: w * mean(w, x), lambda: w)
        return jax.lax.while_loop(lambda w: w.sum() < 9, lambda w: w * mean(w, x), w)

    message = {
        "cond": "pw.accumulate of 'lambda' is inside of a branch (jax.lax.cond, switch): call",
        "while": "with a pw.accumulate in it: write that loop in Python, around calls of the program, or use",
    }[construct]
    with refused(pw.ProgramError, message):
        pw.program(step)(W, X)


def test_accumulate_refuses_loop_over_slices_inside(stages):
    front, back = stages

    def loss(w, x):
        return jax.lax.fori_loop(0, 3, lambda _, h: back(w, front(w, h)), x).sum()

    message = (
        "the loop is a jax.lax.scan or fori_loop over several slices inside the function 'loss' that was"
    )
    with refused(pw.ProgramError, message):
        pw.program(pw.accumulate(loss, 2))(W, X)


def test_accumulate_refuses_carry_of_other_type(run):
    def mean(w, x, total):
        return total[None], layer(w, x).sum()

    message = "pw.accumulate of 'mean': carry is passed on as float32[1], but carried as float32[]"
    with refused(TypeError, message):
        run(pw.accumulate(mean, 2, carry_argnums=2), W, X, np.float32(0))


def test_accumulate_refuses_carry_of_other_structure(run):
    def mean(w, x, total, key):
        return total, layer(w, x).sum()

    message = "the new carry must have the structure of the old one, (*, *), got *"
    with refused(TypeError, message):
        run(pw.accumulate(mean, 2, carry_argnums=(2, 3)), W, X, np.float32(0), np.float32(0))


def test_accumulate_refuses_function_that_returns_no_carry(run):
    message = "with carry_argnums the function returns (carry, results), as that of jax.lax.scan, got *"
    with refused(TypeError, message):
        run(pw.accumulate(lambda w, x, s: layer(w, x).sum(), 2, carry_argnums=2), W, X, np.float32(0))


@pytest.mark.parametrize("carried", [3, -4, (1, 1)])
def test_accumulate_refuses_carry_that_is_no_argument(stages, carried):
    loop = pw.accumulate(lambda w, x, s: (s, stages[0](w, x).sum()), 2, carry_argnums=carried)
    with refused(ValueError, "must be different positions of the 3 positional arguments"):
        pw.program(loop)(W, X, np.float32(0))


def test_accumulate_refuses_argument_split_and_carried(stages):
    loop = pw.accumulate(lambda w, x: (x, stages[0](w, x).sum()), 2, batch_argnums=1, carry_argnums=1)
    with refused(ValueError, "argument 1 cannot be both split and carried"):
        pw.program(loop)(W, X)


def test_accumulate_refuses_unknown_schedule_of_program(loss):
    with refused(ValueError, "schedule is neither a policy nor a .csv file: unknown policy '1F1B'; did you"):
        pw.program(loss, schedule="1F1B")


def test_accumulate_error_of_schedule_names_line(stages):
    twice = [*stages, *stages]

    def step(w, x):
        return pw.accumulate(lambda w, x: total_of(twice, w, x), 1)(w, x)

    first_line = step.__code__.co_firstlineno
    with pytest.raises(pw.ProgramError, match=rf"a multiple of 2 .*{__name__}\.py:{first_line + 1}:"):
        pw.program(step, schedule="interleaved-1f1b").lower(W, X)


def test_accumulate_warns_of_function_on_one_slice(stages):
    """A loop with nothing to pipeline runs, and a warning and a remark report it."""
    program = pw.program(pw.accumulate(lambda w, x: stages[0](w, x).sum(), 2), schedule="1f1b")
    with pytest.warns(pw.PathwaysWarning, match="alone: nothing is pipelined"):
        np.testing.assert_allclose(program(W, X), layer(W, X).sum() / 2, rtol=1e-6)
    assert any(
        "runs on" in r.message and "nothing is pipelined" in r.message for r in program.lower(W, X).remarks
    )


def test_accumulate_warns_of_unread_microbatch(loss):
    program = pw.program(lambda w, x: pw.accumulate(lambda w, _: loss(w, x), 2)(w, x), schedule="1f1b")
    with pytest.warns(pw.PathwaysWarning, match="nothing is pipelined"):
        (remark,) = program.lower(W, X).remarks
    assert remark.message.endswith("has no launches: no used value depends on the microbatch")
    assert "test_accumulate_errors.py" in str(remark.position)
    np.testing.assert_allclose(program(W, X), total(W, X), rtol=1e-6)


def test_accumulate_warns_of_function_without_placed_call(stages):
    """The work of such a loop is placed like any other unplaced operation."""
    program = pw.program(lambda w, x: (stages[0](w, x), pw.accumulate(total, 2)(w, x)))
    with pytest.warns(pw.PathwaysWarning, match="calls no pw.jit function"):
        np.testing.assert_allclose(program(W, X)[1], total(W, X) / 2, rtol=1e-6)


def test_accumulate_refuses_value_leaked_from_microbatch(stages, loss):
    leaked = []

    def leaky(w, x):
        h = stages[0](w, x)
        leaked.append(h)
        return h.sum()

    def returned(w, x):
        return pw.accumulate(leaky, 2)(w, x), leaked[-1]

    def split_again(w, x):
        return pw.accumulate(leaky, 2)(w, x), pw.accumulate(loss, 2)(w, leaked[-1])

    def in_another_loop(w, x):
        first = pw.accumulate(leaky, 2)(w, x)
        return first, pw.accumulate(lambda w, x: loss(w, x + leaked[-1]), 2)(w, x)

    message = "uses a value of a microbatch outside of the function 'leaky' that was given to pw.accumulate"
    for step in (returned, split_again, in_another_loop):
        with refused(pw.ProgramError, message):
            pw.program(step)(W, X)
    with refused(pw.ProgramError, "let the function return what is used outside of it"):
        pw.program(lambda w, x: pw.accumulate(leaky, 2)(w, x) + leaked[-1])(W, X)


def test_accumulate_refuses_to_write_reference_from_outside(stages, loss):
    def add(ref, x):
        ref[...] += x

    def step(write, w, x):
        ref = jax.new_ref(jnp.zeros(()))

        def of_microbatch(w, x):
            write(ref, x.sum())
            return loss(w, x) + ref[...]

        return pw.accumulate(of_microbatch, 2)(w, x), ref[...]

    def in_loop(ref, x):
        jax.lax.fori_loop(0, 3, lambda _, x: add(ref, x) or x, x)

    on_slice = pw.jit(add, devices=stages[0].devices)
    for write in (add, in_loop, jax.jit(add), on_slice, lambda ref, x: jax.ref.addupdate(ref, (), x)):
        with refused(ValueError, "pw.accumulate of 'of_microbatch' writes a reference (jax.new_ref) at "):
            pw.program(lambda w, x, write=write: step(write, w, x))(W, X)


def test_accumulate_reads_references_and_writes_its_own(stages, loss):
    def of_microbatch(ref, w, x):
        own = jax.new_ref(w)
        own[0] += ref[0]
        return loss(own[...], x)

    def step(w, x):
        ref = jax.new_ref(w)
        first = pw.accumulate(lambda w, x: of_microbatch(ref, w, x), 2)(w, x)
        ref[0] = w[1] * first
        return first, pw.accumulate(lambda w, x: of_microbatch(ref, w, x), 2)(w, x)

    w, x = jnp.asarray(W), X[:4]
    first = total(w.at[0].add(w[0]), x)
    second = total(w.at[0].add(w[1] * first), x)
    np.testing.assert_allclose(pw.program(step)(W, X), (first, second), rtol=1e-6)


def test_accumulate_runs_after_error_in_function(run):
    with pytest.raises(ZeroDivisionError):
        run(pw.accumulate(lambda w, x: 1 // 0, 2), W, X)
    np.testing.assert_allclose(pw.accumulate(total, 2)(W, X), total(W, X) / 2, rtol=1e-6)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, pw.program])
def test_accumulate_refuses_batches_of_unlike_leading_axes(transform):
    loop = transform(pw.accumulate(lambda w, batch: w * (batch["x"].sum() + batch["y"].sum()), 2))
    message = (
        r"argument 1\['x'\] of shape \(4, 2\) and argument 1\['y'\] of shape \(6,\) have different leading"
    )
    with pytest.raises(ValueError, match=message):
        loop(np.float32(1), {"x": np.ones((4, 2), np.float32), "y": np.ones(6, np.float32)})

"""Results of a program as arguments of another: in place on the same slices, else moved once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from check import assert_close
from jax.sharding import PartitionSpec as P
from models import apply, layer, place_on, sgd

import pathways as pw

WIDTH = 16
X = np.linspace(-1, 1, 8 * WIDTH, dtype=np.float32).reshape(8, WIDTH)


def born(key: jax.Array) -> jax.Array:
    return jax.random.normal(key, (WIDTH, WIDTH)) / 4


class Model:
    """Model of two layers on slices of their own, of two devices each."""

    def __init__(self) -> None:
        devices = pw.make_virtual_device_set()
        self.slices = [devices.add_slice((2,), ("x",)) for _ in range(2)]
        self.actor = devices.add_slice((1,), ("x",))
        makers = place_on(self.slices, born, out_shardings=P("x"))
        layers = place_on(self.slices, in_shardings=(P("x"), None))

        def forward(params: list[Any], x: Any) -> Any:
            return apply(layers, params, x)

        @pw.program
        def init(key):
            return [make(k) for make, k in zip(makers, jax.random.split(key), strict=True)]

        @pw.program(donate_argnums=0)
        def train(params, x):
            value, grads = jax.value_and_grad(lambda p: (forward(p, x) ** 2).mean())(params)
            return sgd(params, grads), value

        self.init, self.train, self.forward = init, train, pw.program(forward)


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


def assert_taken_in_place(program: pw.Program, *arguments: Any) -> None:
    """Checks that no argument has to move for a call."""
    placed = program.place(*arguments)
    for given, there in zip(jax.tree.leaves(arguments), jax.tree.leaves(placed), strict=True):
        assert there is given


def test_state_is_initialized_in_shards_as_by_jax(model: Model) -> None:
    key = jax.random.key(7)
    compiled = model.init.lower(key).compile()
    params = compiled(key)
    for w, k in zip(params, jax.random.split(key), strict=True):
        np.testing.assert_array_equal(w, jax.jit(born)(k))
        assert {shard.data.shape for shard in w.addressable_shards} == {(WIDTH // 2, WIDTH)}
    # No device has a whole parameter: the results of a slice would be larger by the number of its devices.
    whole = WIDTH * WIDTH * 4
    sizes = compiled.memory_analysis()
    assert [sizes[s.name].output_size_in_bytes for s in model.slices] == [whole, whole]
    # Only keys move.
    assert compiled.cost_analysis()["bytes transferred"] <= 64


def test_state_that_is_trained_is_evaluated_in_place(model: Model) -> None:
    params, _ = model.train(model.init(jax.random.key(0)), X)
    before = [np.asarray(w) for w in params]
    assert_taken_in_place(model.forward, params, model.forward.place(params, X)[1])
    y = model.forward(params, X)
    assert_close(y, apply([layer] * 2, before, X))
    again, _ = model.train(params, X)
    assert_taken_in_place(model.train, again, model.train.place(again, X)[1])


def test_state_that_is_trained_generates_in_a_loop(model: Model) -> None:
    params, _ = model.train(model.init(jax.random.key(0)), X)

    @pw.program
    def generate(params, x):
        return jax.lax.scan(lambda x, _: (model.forward(params, x),) * 2, x, length=3)[1]

    assert_taken_in_place(generate, params, generate.place(params, X)[1])
    tokens = generate(params, X)
    for n in range(3):
        assert_close(tokens[n], model.forward(params, tokens[n - 1] if n else X))


def test_state_with_an_average_beside_it(model: Model) -> None:
    # Programs determine the shardings of arguments, not the arrays passed to them.
    halves = (P("x"), P("x"))
    blend = place_on(model.slices, lambda a, w: 0.9 * a + 0.1 * w, in_shardings=halves)

    @pw.program(donate_argnums=0)
    def average(ema, params):
        return [f(a, w) for f, a, w in zip(blend, ema, params, strict=True)]

    params = model.init(jax.random.key(0))
    ema = model.init(jax.random.key(1))
    wanted = [0.9 * np.asarray(a) + 0.1 * np.asarray(w) for a, w in zip(ema, params, strict=True)]
    compiled = average.lower(ema, params).compile()
    assert compiled.cost_analysis()["transfers"] == 0
    assert_taken_in_place(average, ema, params)
    ema = compiled(ema, params)
    assert [a.sharding for a in ema] == [w.sharding for w in params]
    assert_close(ema, wanted)


def test_place_copies_weights_of_a_learner_to_an_actor(model: Model) -> None:
    @pw.program
    def act(params, x):
        return pw.jit(lambda ws, x: apply([layer] * 2, ws, x), devices=model.actor)(params, x)

    params = model.init(jax.random.key(0))
    before = [np.asarray(w) for w in params]
    weights, x = act.place(params, X)
    assert [w.devices() for w in weights] == [x.devices()] * 2
    assert all(w.devices().isdisjoint(p.devices()) for w, p in zip(weights, params, strict=True))
    assert_taken_in_place(act, weights, x)
    # Each continues by itself: the learner donates its arrays, the actor keeps its own.
    params, _ = model.train(params, X)
    assert_close(act(weights, x), apply([layer] * 2, before, X))
    weights, _ = act.place(params, X)
    assert_close(act(weights, x), model.forward(params, X))


@pytest.mark.parametrize(
    ("shape", "spec"), [((8,), P()), ((8,), P("x")), ((1,), P())], ids=["same", "cut", "fewer"]
)
def test_place_copies_weights_to_an_actor_on_the_same_devices(shape: tuple[int, ...], spec: P) -> None:
    """`place` returns arrays of its own also where they could be the same memory."""
    devices = pw.make_virtual_device_set()
    learner, actor = (devices.add_slice(each, ("x",), overlap=True) for each in ((8,), shape))
    learn = pw.program(pw.jit(lambda w: w + 1, devices=learner), donate_argnums=0)
    act = pw.program(pw.jit(lambda w, x: w * x, devices=actor, in_shardings=(spec, None)))
    ones = np.ones((8, WIDTH), np.float32)
    (w,) = learn.place(ones)
    (kept, x) = act.place(w, np.float32(2))
    for step in range(3):
        w = learn(w)
        np.testing.assert_array_equal(act(kept, x), 2 * ones)
        np.testing.assert_array_equal(w, (step + 2) * ones)


def tied_step(devices: Any, **options: Any) -> Any:
    """Returns a step of a model whose first and last slice share a table, and its arguments."""
    first, last = (devices.add_slice((1,), ("x",)) for _ in range(2))
    embed = pw.jit(lambda e, t: e[t], devices=first)
    layer = pw.jit(lambda w, x: jnp.tanh(x @ w), devices=last)
    head = pw.jit(lambda e, x: jnp.mean((x @ e.T) ** 2), devices=last)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))

    def step(p, s, b):
        grad = jax.grad(lambda p, b: head(p["e"], layer(p["w"], embed(p["e"], b))))
        u, s = tx.update(pw.accumulate(grad, 2)(p, b), s, p)
        return optax.apply_updates(p, u), s

    p = {"e": jnp.ones((40, WIDTH)), "w": jnp.eye(WIDTH)}
    arguments = p, tx.init(p), jnp.zeros((4, 2), jnp.int32)
    return pw.program(step, schedule="1f1b", **options).lower(*arguments).compile(), arguments


@pytest.mark.filterwarnings("error")
def test_state_that_two_slices_read_stays_at_home() -> None:
    compiled, arguments = tied_step(pw.make_virtual_device_set(), donate_argnums=(0, 1))
    assert compiled.cost_analysis()["argument bytes transferred"] == 0
    *state, batch = compiled.place(*arguments)
    homes = [x.devices() for x in jax.tree.leaves(state)]
    assert [x.devices() for x in jax.tree.leaves(compiled(*state, batch))] == homes
    # The results have its buffers.
    assert all(x.is_deleted() for x in jax.tree.leaves(state))


def test_state_that_is_not_donated_is_copied_to_all_readers() -> None:
    compiled, _ = tied_step(pw.make_virtual_device_set())
    assert compiled.cost_analysis()["argument bytes transferred"] == 40 * WIDTH * 4


def test_state_that_launches_return_elsewhere_is_counted(model: Model) -> None:
    first, last = place_on([*model.slices], lambda w, x: x @ w)

    @pw.program(donate_argnums=1)
    def step(params, x):
        return last(params[1], first(params[0], x))

    lowered = step.lower(model.init(jax.random.key(0)), np.repeat(X, 4, axis=0))
    (remark,) = [str(remark) for remark in lowered.remarks]
    a, b = (slice.name for slice in model.slices)
    assert f"moves {4 * X.nbytes} bytes of argument x to @{a} in each call" in remark
    assert f"these are on @{b}" in remark
    # Each of the two devices gets all of it.
    assert lowered.compile().cost_analysis()["argument bytes transferred"] == 8 * X.nbytes

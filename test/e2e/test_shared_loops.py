"""Stages whose layers are the same loop share a computation of it, and give what `jax.jit` gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check import assert_close
from jax.sharding import PartitionSpec as P
from models import training_step

import pathways as pw

M, ROWS, LENGTH, WIDTH, VOCABULARY, LAYERS = 4, 4, 6, 8, 12, 3


def array(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32) / np.sqrt(shape[-1])


def norm(x: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)


def layer(x: jax.Array, w: Any) -> jax.Array:
    """Applies attention with a mask, and a feed-forward network."""
    q, k, v = jnp.split(norm(x) @ w["qkv"], 3, axis=-1)
    mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    scores = jnp.where(mask, jnp.einsum("blh,bmh->blm", q, k), -1e9)
    x = x + jax.nn.softmax(scores) @ v
    return x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"]


def scanned(body: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda w, x: jax.lax.scan(lambda x, w: (body(x, w), None), x, w)[0]


LOOPS = {
    "scan": scanned(layer),
    "scan with remat": scanned(jax.checkpoint(layer)),
    "scan in a function": jax.jit(scanned(layer)),
    "scan under remat": jax.checkpoint(scanned(layer)),
}


def parameters(stages: int) -> list[dict[str, np.ndarray]]:
    shapes = {"qkv": (WIDTH, 3 * WIDTH), "up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH)}
    weights = [
        {name: array(LAYERS, *shape, seed=10 * n + k) for k, (name, shape) in enumerate(shapes.items())}
        for n in range(stages)
    ]
    weights[0]["embedding"] = array(VOCABULARY, WIDTH, seed=100)
    weights[-1]["head"] = array(WIDTH, VOCABULARY, seed=101)
    return weights


def layers_of(w: dict[str, Any]) -> dict[str, Any]:
    return {name: w[name] for name in ("qkv", "up", "down")}


def step_of(layers: Callable[..., jax.Array], put: Callable[[Callable, int], Callable], stages: int) -> Any:
    """Returns a training step; `put` places the function of a stage."""
    front = put(lambda w, tokens: layers(layers_of(w), w["embedding"][tokens]), 0)
    middle = [put(layers, n) for n in range(1, stages - 1)]

    def back(w: Any, x: jax.Array, targets: jax.Array) -> jax.Array:
        logits = jax.nn.log_softmax(layers(layers_of(w), x) @ w["head"])
        return -jnp.take_along_axis(logits, targets[..., None], -1).mean()

    last = put(back, stages - 1)

    def loss(params: Any, batch: Any) -> jax.Array:
        x = front(params[0], batch[0])
        for stage, w in zip(middle, params[1:-1], strict=True):
            x = stage(w, x)
        return last(params[-1], x, batch[1])

    return training_step(loss, M)


def batch() -> tuple[np.ndarray, np.ndarray]:
    tokens = np.random.default_rng(7).integers(0, VOCABULARY, (M * ROWS, LENGTH + 1), np.int32)
    return tokens[:, :-1], tokens[:, 1:]


@pytest.mark.parametrize(
    ("form", "schedule", "stages"),
    [
        ("scan", "gpipe", 3),
        ("scan with remat", "zb-h1", 2),
        ("scan in a function", "1f1b", 2),
        ("scan under remat", "1f1b", 2),
    ],
)
def test_shared_loops_agree_with_jit(form: str, schedule: str, stages: int) -> None:
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice((1,), ("x",)) for _ in range(stages)]
    step = step_of(LOOPS[form], lambda fun, n: pw.jit(fun, devices=slices[n]), stages)
    compiled = pw.program(step, schedule=schedule).lower(parameters(stages), batch()).compile()
    plain = jax.jit(step_of(LOOPS[form], lambda fun, _: fun, stages))
    assert_close(compiled(parameters(stages), batch()), plain(parameters(stages), batch()))


def test_shared_loops_compiled_once_for_all_stages() -> None:
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice((1,), ("x",)) for _ in range(3)]
    step = step_of(LOOPS["scan"], lambda fun, n: pw.jit(fun, devices=slices[n]), 3)
    text = pw.program(step, schedule="1f1b").lower(parameters(3), batch()).as_text("scheduled")
    # One of the forwards, one of the backwards: not three of each.
    assert text.count("stablehlo.while") == 2


@pytest.mark.parametrize("spec", [P("data"), P(None, "model")])
def test_shared_loops_on_slices_of_several_devices(spec: P) -> None:
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice((2, 2), ("data", "model")) for _ in range(2)]

    def put(fun: Callable, n: int) -> Callable:
        def constrained(w: Any, *args: Any) -> Any:
            sharded = P(None, None, "model") if spec[0] is None else P()
            w = {k: jax.lax.with_sharding_constraint(v, sharded) if k == "up" else v for k, v in w.items()}
            rows = P(spec[0])
            return fun(w, *(jax.lax.with_sharding_constraint(a, rows) for a in args))

        return pw.jit(constrained, devices=slices[n])

    compiled = pw.program(step_of(LOOPS["scan"], put, 2), schedule="1f1b").lower(parameters(2), batch())
    assert compiled.as_text("scheduled").count("stablehlo.while") == 2
    plain = jax.jit(step_of(LOOPS["scan"], lambda fun, _: fun, 2))
    assert_close(compiled.compile()(parameters(2), batch()), plain(parameters(2), batch()))

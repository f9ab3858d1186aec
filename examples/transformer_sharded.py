"""Transformer in two stages, each on a slice of 2x2 devices: pipeline, tensor and data parallel at once.

Attention heads and the hidden dimension of the MLPs are sharded over the axis "model", batches over "data".
Only the parameters and the batch have a `PartitionSpec`; gradients, optimizer states and values between the
slices get theirs from them.

Gradients, and the parameters after some steps of SGD and of AdamW, are compared with those that plain
`jax.jit` computes on one device; the exit status says whether they agree. With --x64 they do to 1e-10,
element by element.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

import pathways as pw

VOCABULARY, WIDTH, HEADS, HEAD, HIDDEN = 64, 32, 4, 8, 128
BATCH, LENGTH, STEPS = 8, 16, 3
AXES = ("data", "model")

Batch = tuple[np.ndarray, np.ndarray]
Params = dict[str, Any]
Stage = Callable[[Params, Any], jax.Array]

BLOCK_SPECS = {
    "attention_norm": P(),
    "qkv": P(None, None, "model"),
    "project": P("model"),
    "mlp_norm": P(),
    "up": P(None, "model"),
    "down": P("model"),
}
FRONT_SPECS = {"embed": P(), "position": P(), "block": BLOCK_SPECS}
BACK_SPECS = {"block": BLOCK_SPECS, "norm": P(), "head": P(None, "model")}


def init_params(rng: np.random.Generator, dtype: str) -> Params:
    """Returns parameters of both stages, as numpy arrays."""

    def normal(*shape: int, fan_in: int) -> np.ndarray:
        return rng.normal(scale=fan_in**-0.5, size=shape).astype(dtype)

    def block() -> Params:
        return {
            "attention_norm": np.ones(WIDTH, dtype),
            "qkv": normal(WIDTH, 3, HEADS, HEAD, fan_in=WIDTH),
            "project": normal(HEADS, HEAD, WIDTH, fan_in=HEADS * HEAD),
            "mlp_norm": np.ones(WIDTH, dtype),
            "up": normal(WIDTH, HIDDEN, fan_in=WIDTH),
            "down": normal(HIDDEN, WIDTH, fan_in=HIDDEN),
        }

    return {
        "front": {
            "embed": normal(VOCABULARY, WIDTH, fan_in=WIDTH),
            "position": normal(LENGTH, WIDTH, fan_in=WIDTH),
            "block": block(),
        },
        "back": {
            "block": block(),
            "norm": np.ones(WIDTH, dtype),
            "head": normal(WIDTH, VOCABULARY, fan_in=WIDTH),
        },
    }


def normalize(x: jax.Array, scale: jax.Array) -> jax.Array:
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * scale


def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Applies causal attention, all of shape (batch, length, heads, head); each head stays on its devices."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * HEAD**-0.5
    causal = jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool))
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(causal, scores, -1e9)), v)


def apply_block(params: Params, x: jax.Array) -> jax.Array:
    """Applies one block, from (batch, length, width) to the same; sums over heads and hidden units cross
    "model"."""
    q, k, v = jnp.einsum("btw,wchd->cbthd", normalize(x, params["attention_norm"]), params["qkv"])
    x = x + jnp.einsum("bthd,hdw->btw", attend(q, k, v), params["project"])
    x = jax.lax.with_sharding_constraint(x, P("data"))
    x = x + jax.nn.gelu(normalize(x, params["mlp_norm"]) @ params["up"]) @ params["down"]
    return jax.lax.with_sharding_constraint(x, P("data"))


def front(params: Params, inputs: jax.Array) -> jax.Array:
    """Runs the first stage: from tokens (batch, length) to activations (batch, length, width)."""
    return apply_block(params["block"], params["embed"][inputs] + params["position"])


def back(params: Params, x: jax.Array) -> jax.Array:
    """Runs the second stage: from activations to logits (batch, length, vocabulary)."""
    return normalize(apply_block(params["block"], x), params["norm"]) @ params["head"]


def loss_and_gradients(front: Stage, back: Stage, params: Params, batch: Batch) -> tuple[jax.Array, Params]:
    def mean_loss(params: Params) -> jax.Array:
        inputs, targets = batch
        logits = back(params["back"], front(params["front"], inputs))
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    return jax.value_and_grad(mean_loss)(params)


def make_step(front: Stage, back: Stage, optimizer: optax.GradientTransformation) -> Callable[..., Any]:
    def train_step(state: Any, batch: Batch) -> tuple[Any, jax.Array]:
        """Returns the state after one more batch, and the loss on that batch."""
        params, optimizer_state = state
        loss, gradients = loss_and_gradients(front, back, params, batch)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        return (optax.apply_updates(params, updates), optimizer_state), loss

    return train_step


# Comparing: everything is done twice, by programs on the slices and by `jax.jit` on one device.


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Results of a run.

    Attributes:
      trees: the gradients, and by the name of each optimizer the parameters after training.
      losses: all losses on the way.
      step: the compiled train step of the last optimizer.
    """

    trees: dict[str, Params]
    losses: list[jax.Array]
    step: Any


def run(jit: Callable[..., Any], front: Stage, back: Stage, params: Params, batch: Batch) -> Outcome:
    def gradients(params: Params, batch: Batch) -> tuple[jax.Array, Params]:
        return loss_and_gradients(front, back, params, batch)

    loss, tree = jit(gradients)(params, batch)
    trees, losses = {"gradient": tree}, [loss]
    for name, optimizer in (("SGD", optax.sgd(0.1)), ("AdamW", optax.adamw(1e-3))):
        state = params, jax.device_get(optimizer.init(params))
        step = jit(make_step(front, back, optimizer), donate_argnums=0).lower(state, batch).compile()
        for _ in range(STEPS):
            state, loss = step(state, batch)
            losses.append(loss)
        trees[name] = state[0]
    return Outcome(trees, losses, step)


def difference(ours: Any, theirs: Any, elementwise: bool) -> float:
    """Returns the relative difference of two arrays, by the norm or the largest one of any element."""
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if not elementwise:
        return float(np.linalg.norm(a - b) / np.linalg.norm(b))
    # If theirs is zero, ours counts as it is.
    return float(np.max(np.abs(a - b) / np.where(b == 0, 1, np.abs(b))))


def leaves_of(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a tree by their paths."""
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in paths}


def main() -> int:
    parser = argparse.ArgumentParser(description="Check a sharded transformer against jax.jit.")
    parser.add_argument("--x64", action="store_true", help="compute in 64 bits and compare each element")
    x64 = parser.parse_args().x64
    jax.config.update("jax_enable_x64", x64)
    tolerance = 1e-10 if x64 else 1e-6

    rng = np.random.default_rng(0)
    params = init_params(rng, "float64" if x64 else "float32")
    tokens = rng.integers(VOCABULARY, size=(BATCH, LENGTH + 1), dtype=np.int32)
    batch = tokens[:, :-1], tokens[:, 1:]

    pw.connect(cpu_devices=8)
    devices = pw.make_virtual_device_set()
    s0 = devices.add_slice(shape=(2, 2), axis_names=AXES)
    s1 = devices.add_slice(shape=(2, 2), axis_names=AXES)
    front_on_s0 = pw.jit(front, devices=s0, in_shardings=(FRONT_SPECS, P("data")))
    back_on_s1 = pw.jit(back, devices=s1, in_shardings=(BACK_SPECS, P("data")))
    ours = run(pw.program, front_on_s0, back_on_s1, params, batch)
    # The same code on one device: a mesh on which the names of the axes mean nothing.
    automatic = (jax.sharding.AxisType.Auto,) * len(AXES)
    with jax.set_mesh(jax.make_mesh((1, 1), AXES, automatic, devices=jax.devices()[:1])):
        theirs = run(jax.jit, front, back, params, batch)

    print(f"{'':27}{'shape':15}{'sharding':22}" + "".join(f"{name:>10}" for name in ours.trees))
    worst = dict.fromkeys(ours.trees, 0.0)
    references = {name: leaves_of(tree) for name, tree in theirs.trees.items()}
    for path, leaf in leaves_of(ours.trees["gradient"]).items():
        line = f"{path:27}{leaf.shape!s:15}{leaf.sharding.spec!s:22}"
        for name, tree in ours.trees.items():
            apart = difference(leaves_of(tree)[path], references[name][path], x64)
            worst[name] = max(worst[name], apart)
            line += f"{apart:10.1e}"
        print(line)
    worst["loss"] = max(difference(*pair, x64) for pair in zip(ours.losses, theirs.losses, strict=True))

    cost = ours.step.cost_analysis()
    print(f"\ntransfers per step {cost['transfers']}, bytes on the wire {cost['bytes transferred']:,}")
    for name, value in worst.items():
        verdict = "agree" if value <= tolerance else "DISAGREE"
        measure = "of any element" if x64 else "of any array, by its norm"
        print(f"{name:8} {verdict}: largest relative difference {measure} {value:.1e}")
    return 0 if max(worst.values()) <= tolerance else 1


if __name__ == "__main__":
    sys.exit(main())

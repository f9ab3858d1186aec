"""Random losses in plain JAX, cut by `pw.auto`, whose gradients must equal those of the uncut ones.

  python test/fuzz/random_losses.py [--seed N] [--count N] [--first N]

Layers of several widths, skips, stacks under `jax.lax.scan` in both directions, checkpointed blocks,
functions with rules of their own, masks from the data, tables, parameters that are shared, cast, indexed or
penalized, branches, keys, auxiliary results. A loss is always the same for its seed and number.
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import argparse
import random
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pathways as pw

Params = dict[str, Any]
Value = jax.Array
MICROBATCHES = 5
ROWS = 4


@jax.custom_vjp
def clipped(x: Value) -> Value:
    """Clips an array; a function with its own derivative rule."""
    return x


clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.5, 0.5),))


class RandomLoss:
    """Loss of random pieces.

    Args:
      seed: the seed of all losses of a run.
      number: the number of the loss.
    """

    def __init__(self, seed: int, number: int) -> None:
        self.rng = random.Random(f"losses/{seed}/{number}")
        self.key = seed * 100_003 + number
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.pieces: list[Callable[[Params, list[Value], Any], None]] = []
        self.has_aux = self.rng.random() < 0.3
        self.penalty = self.rng.random() < 0.2
        self.width = self.rng.choice([4, 8])
        for _ in range(self.rng.randint(3, 9)):
            getattr(self, f"_{self.rng.choice(_PIECES)}")()
        self._dense()

    def init(self) -> Params:
        """Returns the parameters."""
        keys = jax.random.split(jax.random.key(self.key), len(self.shapes))
        return {
            name: jax.random.normal(key, shape) / max(1.0, float(np.sqrt(shape[-1] if shape else 1)))
            for key, (name, shape) in zip(keys, self.shapes.items(), strict=True)
        }

    def batch(self) -> Any:
        """Returns a batch of all microbatches."""
        keys = jax.random.split(jax.random.key(self.key + 1), 2)
        rows = MICROBATCHES * ROWS
        return {
            "x": jax.random.normal(keys[0], (rows, self.width)),
            "tokens": jax.random.randint(keys[1], (rows, 3), 0, 6),
        }

    def __call__(self, params: Params, batch: Any) -> Any:
        """Returns the loss, with an auxiliary result if it has one."""
        values = [batch["x"]]
        for piece in self.pieces:
            piece(params, values, batch)
        loss = jnp.mean(values[-1] ** 2) + 0.1 * jnp.mean(values[len(values) // 2])
        if self.penalty:
            loss = loss + 1e-3 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
        if not self.has_aux:
            return loss
        return loss, {"hits": (values[-1] > 0).mean(), "norm": jnp.sqrt(jnp.sum(values[1] ** 2))}

    def _weight(self, *shape: int) -> str:
        name = f"w{len(self.shapes)}"
        self.shapes[name] = shape
        return name

    def _old_or_new(self, *shape: int) -> str:
        """Returns a weight, sometimes that of another piece."""
        old = [name for name, known in self.shapes.items() if known == shape]
        return self.rng.choice(old) if old and self.rng.random() < 0.3 else self._weight(*shape)

    def _activation(self) -> Callable[[Value], Value]:
        return self.rng.choice([jnp.tanh, jax.nn.gelu, jax.nn.relu, jax.nn.softmax, clipped, lambda x: x])

    def _dense(self) -> None:
        wide = self.rng.choice([1, 2, 4]) * self.width
        a, b, bias = (
            self._old_or_new(self.width, wide),
            self._old_or_new(wide, self.width),
            self._weight(wide),
        )
        activation = self._activation()
        remat = self.rng.random() < 0.3
        cast = self.rng.random() < 0.3

        def block(x: Value, a: Value, b: Value, bias: Value) -> Value:
            if cast:
                a = (a * 1.0).astype(jnp.float16).astype(jnp.float32)
            return x + activation(x @ a + bias) @ b

        def piece(params: Params, values: list[Value], _: Any) -> None:
            block_of = jax.checkpoint(block) if remat else jax.jit(block)
            values.append(block_of(values[-1], params[a], params[b], params[bias]))

        self.pieces.append(piece)

    def _scan(self) -> None:
        layers = self.rng.randint(2, 5)
        name = self._old_or_new(layers, self.width, self.width)
        scale = self._weight(layers)
        reverse, remat, cast = (self.rng.random() < 0.4 for _ in range(3))
        activation = self._activation()
        counts = self.rng.random() < 0.3
        unroll = self.rng.choice([1, 1, 2])

        def layer(carry: Any, xs: Any) -> Any:
            x, n = carry
            w, s = xs
            return (x + activation(x @ w) * (1 + s * (n if counts else 1)), n + 1), None

        def piece(params: Params, values: list[Value], _: Any) -> None:
            body = jax.checkpoint(layer) if remat else layer
            weights = (params[name] * 0.5).astype(jnp.float32) if cast else params[name]
            start = values[-1], jnp.float32(0)
            xs = weights, params[scale]
            (x, _), _ = jax.lax.scan(body, start, xs, reverse=reverse, unroll=unroll)
            values.append(x)

        self.pieces.append(piece)

    def _rnn(self) -> None:
        """Adds a scan over the data, which is no loop over layers."""
        w = self._weight(self.width, self.width)

        def piece(params: Params, values: list[Value], batch: Any) -> None:
            def cell(h: Value, token: Value) -> tuple[Value, Value]:
                h = jnp.tanh(h @ params[w] + token[:, None])
                return h, h.sum(-1)

            h, sums = jax.lax.scan(cell, values[-1], batch["tokens"].T.astype(jnp.float32) / 6)
            values.append(h + sums.mean())

        self.pieces.append(piece)

    def _embedding(self) -> None:
        table = self._old_or_new(6, self.width)

        def piece(params: Params, values: list[Value], batch: Any) -> None:
            x = values[-1] + params[table][batch["tokens"]].sum(1)
            values.append(x @ params[table].T @ params[table] * 0.1)

        self.pieces.append(piece)

    def _skip(self) -> None:
        back = self.rng.randint(1, 4)

        def piece(_: Params, values: list[Value], __: Any) -> None:
            values.append(values[-1] + 0.5 * values[max(0, len(values) - 1 - back)])

        self.pieces.append(piece)

    def _mask(self) -> None:
        def piece(_: Params, values: list[Value], batch: Any) -> None:
            mask = (batch["tokens"] > 2).any(-1, keepdims=True)
            table = jnp.sin(jnp.arange(values[-1].shape[1], dtype=jnp.float32))
            values.append(jnp.where(mask, values[-1], values[-1] * table))

        self.pieces.append(piece)

    def _branch(self) -> None:
        w = self._weight(self.width, self.width)

        def piece(params: Params, values: list[Value], batch: Any) -> None:
            taken = batch["tokens"].sum() > 30
            x = values[-1]
            values.append(jax.lax.cond(taken, lambda x: jnp.sin(x) @ params[w], lambda x: x, x))

        self.pieces.append(piece)

    def _indexed(self) -> None:
        layers = self.rng.randint(2, 4)
        w = self._weight(layers, self.width, self.width)

        def piece(params: Params, values: list[Value], _: Any) -> None:
            x = values[-1]
            for n in range(layers):
                x = jnp.tanh(x @ params[w][n])
            values.append(x)

        self.pieces.append(piece)

    def _noise(self) -> None:
        def piece(_: Params, values: list[Value], batch: Any) -> None:
            key = jax.random.fold_in(jax.random.key(3), batch["tokens"].sum())
            values.append(values[-1] * jax.random.bernoulli(key, 0.8, values[-1].shape))

        self.pieces.append(piece)

    def _normed(self) -> None:
        """Adds a layer whose weight is computed from two weights."""
        a, b = self._weight(self.width, self.width), self._weight(self.width)

        def piece(params: Params, values: list[Value], _: Any) -> None:
            w = params[a] / jnp.linalg.norm(params[a]) * params[b]
            values.append(values[-1] @ w + jnp.tanh(params[b]))

        self.pieces.append(piece)


_PIECES = (
    *("dense", "dense", "dense", "scan", "scan", "rnn", "embedding", "skip", "mask", "branch"),
    *("indexed", "noise", "normed"),
)

REFUSALS = ("too few for", "slices do as well", "which needs at least")

SCHEDULES = (("1f1b",), ("zb-h1",), ("1f1b", "zb-v"), ("zb-v",), ("search",), ("gpipe",))


def check(seed: int, number: int) -> str:
    """Cuts a loss and compares its gradients; returns the outcome.

    Raises:
      AssertionError: they differ by more than 1e-5 of their norm.
    """
    loss = RandomLoss(seed, number)
    loss.__name__ = "loss"  # type: ignore[attr-defined]
    rng = random.Random(f"cuts/{seed}/{number}")
    params, batch = loss.init(), loss.batch()
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice((1,), ("x",)) for _ in range(rng.choice([2, 2, 3, 4]))]
    microbatch = jax.tree.map(lambda leaf: leaf[:ROWS], batch)
    options = {"schedules": rng.choice(SCHEDULES), "has_aux": loss.has_aux}
    try:
        plan = pw.auto(
            loss, slices=slices, num_microbatches=MICROBATCHES, args=(params, microbatch), **options
        )
    except pw.ProgramError as error:
        if any(reason in str(error) for reason in REFUSALS):
            return "refused"
        raise

    def of_microbatch(loss: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: jax.value_and_grad(loss, has_aux=options["has_aux"])(*args)

    @pw.program(schedule=plan.schedule)
    def step(params: Any, batch: Any) -> Any:
        return pw.accumulate(of_microbatch(plan.loss), MICROBATCHES)(params, batch)

    got, grads = step(plan.split(params), batch)
    wanted, wanted_grads = jax.jit(pw.accumulate(of_microbatch(loss), MICROBATCHES))(params, batch)
    for a, b in ((got, wanted), (plan.merge(grads), wanted_grads)):
        error = relative_error(a, b)
        assert error <= 1e-5, f"error {error:.2e}"
    return plan.tried[0].kind


def relative_error(a: Any, b: Any) -> float:
    """Returns the norm of the difference of two trees, as a fraction of the norm of the second."""
    pairs = [
        (np.asarray(x, np.float64), np.asarray(y, np.float64))
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    ]
    difference = sum(float(np.sum((x - y) ** 2)) for x, y in pairs)
    return float(np.sqrt(difference / max(1e-12, sum(float(np.sum(y**2)) for _, y in pairs))))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="a folder for what failed")
    options = parser.parse_args(argv)
    pw.connect(cpu_devices=4)
    outcomes: dict[str, int] = {}
    for number in range(options.first, options.first + options.count):
        try:
            outcome = check(options.seed, number)
        except Exception as error:
            print(f"seed {options.seed}, number {number}: {type(error).__name__}: {error}", flush=True)
            outcome = "failed"
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"{options.seed}.{number}.txt").write_text(traceback.format_exc())
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())))
    return 1 if outcomes.get("failed") else 0


if __name__ == "__main__":
    sys.exit(main())

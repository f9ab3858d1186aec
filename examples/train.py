"""Training of a small language model over two stages, which continues where it was when it is started again.

With `--replicas 2` there are two of each stage, each pair with half of every batch; with `--zero1` as well,
each of them keeps half of the optimizer's state.

Parameters are initialised on their slices. Grain cuts excerpts out of a text, shuffled (`_train_rows.py`);
`pw.prefetch` puts the next batches on the slices while a step runs. The state is written, with the position
of the input, every few steps in the background. The learning rate warms up and decays. The loss on held-out
text is measured regularly, and all of it goes to metrics.jsonl, one line of JSON for each step. Kill it,
start it again, and it ends with the same losses, bit for bit.

With `--hosts` each slice is on a worker process of its own. Nothing else changes: the hosts make the batches,
write and read checkpoints, and measure parameters. So it may be killed with hosts, and go on without.

    .venv/bin/python examples/train.py --out build/train --steps 200
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _devices import connect
from _train_rows import LENGTH, VOCABULARY, excerpts
from jax.sharding import PartitionSpec as P

import pathways as pw

WIDTH, BATCH, MICROBATCHES = 64, 16, 4


# The model: two stages, a small network over the last characters each.


def init_front(key: jax.Array) -> dict[str, jax.Array]:
    embed, mix = jax.random.split(key)
    return {
        "embed": 0.1 * jax.random.normal(embed, (VOCABULARY, WIDTH)),
        "mix": jax.random.normal(mix, (4 * WIDTH, WIDTH)) / (4 * WIDTH) ** 0.5,
    }


def init_back(key: jax.Array) -> dict[str, jax.Array]:
    hidden, head = jax.random.split(key)
    return {
        "hidden": jax.random.normal(hidden, (WIDTH, 4 * WIDTH)) / WIDTH**0.5,
        "head": 0.1 * jax.random.normal(head, (4 * WIDTH, VOCABULARY)),
    }


def front(params: dict[str, jax.Array], inputs: jax.Array) -> jax.Array:
    """Runs the first stage: from characters (batch, LENGTH) to features of the last four (batch, LENGTH,
    WIDTH)."""
    x = params["embed"][inputs]
    before = [jnp.pad(x, ((0, 0), (n, 0), (0, 0)))[:, :LENGTH] for n in range(4)]
    return jnp.tanh(jnp.concatenate(before, -1) @ params["mix"])


def back(params: dict[str, jax.Array], x: jax.Array, targets: jax.Array) -> jax.Array:
    """Returns the mean cross-entropy of the next character, in nats."""
    logits = jax.nn.gelu(x @ params["hidden"]) @ params["head"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def main() -> int:
    options = parse_options()
    shape, overlap = connect(slices=2 * options.replicas, shape=(1,), hosts=options.hosts)
    devices = pw.make_virtual_device_set(replicas=options.replicas)
    s0, s1 = (devices.add_slice(shape, ("data",), overlap=overlap) for _ in range(2))
    placed_front = pw.jit(front, devices=s0, in_shardings=(P(), P("data")))
    placed_back = pw.jit(back, devices=s1, in_shardings=(P(), P("data"), P("data")))
    born_front, born_back = pw.jit(init_front, devices=s0), pw.jit(init_back, devices=s1)
    rate = optax.warmup_cosine_decay_schedule(0.0, 1e-2, options.steps // 10 + 1, options.steps + 1)
    optimizer = optax.adamw(rate)

    def loss_of(params: Any, batch: Any) -> jax.Array:
        return placed_back(params["back"], placed_front(params["front"], batch["inputs"]), batch["targets"])

    @pw.program
    def init(key: jax.Array) -> Any:
        keys = jax.random.split(key)
        params = {"front": born_front(keys[0]), "back": born_back(keys[1])}
        return {"params": params, "moments": optimizer.init(params)}

    @pw.program(schedule="1f1b", donate_argnums=0, zero1=options.zero1)
    def train_step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        gradient = pw.accumulate(jax.value_and_grad(loss_of), MICROBATCHES)
        loss, grads = gradient(state["params"], batch)
        updates, moments = optimizer.update(grads, state["moments"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "moments": moments}, loss

    evaluate = pw.program(loss_of)

    held_out = excerpts(seed=0, held_out=True).batch(BATCH)
    held_out = [held_out[n] for n in range(4)]
    # Functions of a module, which hosts import. Without hosts they are called here.
    source = pw.on_hosts(excerpts, seed=options.seed)
    norm = pw.on_hosts("_train_rows:norm", devices=s0)
    key = jax.random.key(options.seed)

    folder = options.out / "checkpoints"
    done = pw.checkpoint.latest(folder) or 0
    if done:
        state = pw.checkpoint.restore(folder, init.lower(key).compile().out_info, data=source)
    else:
        state = init(key)
    step = train_step.lower(state, held_out[0]).compile()

    with Metrics(options.out / "metrics.jsonl", done) as metrics:
        with pw.prefetch(source, step, "batch", rows=BATCH, count=options.steps - done) as ready:
            for n, batch in enumerate(ready, done + 1):
                began = time.perf_counter()
                state, loss = step(state, batch)
                line = {"step": n, "loss": float(loss), "learning_rate": float(rate(n - 1))}
                if n % options.every == 0 or n == options.steps:
                    losses = [float(evaluate(state["params"], batch)) for batch in held_out]
                    line["held_out"] = float(np.mean(losses))
                    line["norm"] = norm(state["params"]["front"]).result()[0]
                    metrics.write({**line, "seconds": time.perf_counter() - began})
                    # After the metrics, which so have all steps of a checkpoint.
                    pw.checkpoint.save(folder, state, n, data=ready, keep=options.keep)
                else:
                    metrics.write({**line, "seconds": time.perf_counter() - began})
        print(f"{options.steps - done} steps from step {done}; waited {ready.waited:.2f} s for the input")
    return 0


class Metrics:
    """File of JSON lines, one for each step; steps after the checkpoint run again, and replace their lines.

    Args:
      path: the file.
      done: the step of the checkpoint.
    """

    def __init__(self, path: Path, done: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The last line may have been cut in two.
        lines = path.read_text().splitlines(keepends=True)[:done] if path.exists() else []
        new = path.with_suffix(".new")
        new.write_text("".join(lines))
        new.replace(path)
        self._file = path.open("a")

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a language model that can be killed at any time.")
    parser.add_argument("--out", type=Path, default=Path("build/train"), help="folder (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="train steps (default: %(default)s)")
    parser.add_argument(
        "--every", type=int, default=20, help="steps from checkpoint to checkpoint (default: %(default)s)"
    )
    parser.add_argument("--keep", type=int, default=3, help="checkpoints that stay (default: %(default)s)")
    parser.add_argument(
        "--replicas", type=int, default=1, help="of both stages: 1, 2 or 4 (default: %(default)s)"
    )
    parser.add_argument(
        "--zero1", action="store_true", help="each replica keeps a part of the optimizer's state"
    )
    parser.add_argument("--hosts", action="store_true", help="run each slice in a worker process of its own")
    parser.add_argument("--seed", type=int, default=0, help="of parameters and input (default: %(default)s)")
    options = parser.parse_args()
    if min(options.steps, options.every, options.keep) < 1:
        parser.error("--steps, --every and --keep must be at least 1")
    if options.replicas < 1 or MICROBATCHES % options.replicas:
        parser.error(f"--replicas must divide the {MICROBATCHES} microbatches")
    return options


if __name__ == "__main__":
    sys.exit(main())

"""Training of a small language model over two stages that goes on, whatever is killed.

With `--replicas 2` there are two of each stage, each pair with half of every batch; with `--zero1` as well,
each of them keeps half of the optimizer's state.

Parameters are initialised on their slices. Grain cuts excerpts out of a text, shuffled (`_train_rows.py`);
`pw.resilient` puts the next batches on the slices while a step runs, and keeps copies of the state, with the
position of the input, in memory and in the background on disk. The learning rate warms up and decays. The
loss on held-out text is measured regularly, and all of it goes to metrics.jsonl, one line of JSON for each
step.

With `--hosts` each slice is on a worker process of its own. Nothing else changes: the hosts make the batches,
and measure parameters. Kill one of them, as `--lose 30` does: the run goes on from the copies in memory. Kill
this process, and start it again, with hosts or without: it goes on from the disk. It ends with the same
losses, bit for bit.

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
    shape, overlap = connect(slices=2 * options.replicas, shape=(1,), hosts=options.hosts, islands=True)
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
    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
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

    def train_step(state: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        """Runs a step, again after a loss: so it counts in the state, and writes nothing."""
        done = state["done"] + 1
        model, loss = step(state["model"], batch)
        metrics = {"loss": loss}
        if done % options.every == 0 or done == options.steps:
            metrics["held_out"] = [evaluate(model["params"], batch) for batch in held_out]
            metrics["norm"] = norm(model["params"]["front"]).result()[0]
        return {"model": model, "done": done}, metrics

    # Compiles the step, from which `source` knows where which rows are read.
    model, _ = step.place(init(jax.random.key(options.seed)), held_out[0])
    state = {"model": model, "done": 0}
    training = pw.resilient(
        train_step,
        state,
        source,
        feeds=(step, "batch"),
        rows=BATCH,
        every=options.every,
        directory=options.out / "checkpoints",
        disk_every=1,
        max_to_keep=options.max_to_keep,
    )
    with training as run, Metrics(options.out / "metrics.jsonl", run.step) as lines:
        begun = run.step
        began = time.perf_counter()
        for n, metrics in run.steps(options.steps):
            line = {"step": n + 1, "loss": float(metrics["loss"]), "learning_rate": float(rate(n))}
            if "held_out" in metrics:
                line |= {"held_out": float(np.mean(metrics["held_out"])), "norm": metrics["norm"]}
            lines.write({**line, "seconds": time.perf_counter() - began})
            began = time.perf_counter()
            if n + 1 == options.lose:
                run.lose("island1")
        losses = run.status().losses
    print(f"{options.steps - begun} steps from step {begun}; survived losses: {losses}")
    return 0


class Metrics:
    """File of JSON lines, one for each step; those after the version on disk are written anew.

    Args:
      path: the file.
      done: the step of that version.
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
        "--every", type=int, default=20, help="steps from version to version (default: %(default)s)"
    )
    parser.add_argument(
        "--max-to-keep", type=int, default=3, help="checkpoints that stay (default: %(default)s)"
    )
    parser.add_argument(
        "--lose", type=int, metavar="N", help="lose an island after step N, as when it is killed"
    )
    parser.add_argument(
        "--replicas", type=int, default=1, help="of both stages: 1, 2 or 4 (default: %(default)s)"
    )
    parser.add_argument(
        "--zero1", action="store_true", help="each replica keeps a part of the optimizer's state"
    )
    parser.add_argument("--hosts", action="store_true", help="run each slice in a worker process of its own")
    parser.add_argument("--seed", type=int, default=0, help="of parameters and input (default: %(default)s)")
    options = parser.parse_args()
    if min(options.steps, options.every, options.max_to_keep) < 1:
        parser.error("--steps, --every and --max-to-keep must be at least 1")
    if options.replicas < 1 or MICROBATCHES % options.replicas:
        parser.error(f"--replicas must divide the {MICROBATCHES} microbatches")
    return options


if __name__ == "__main__":
    sys.exit(main())

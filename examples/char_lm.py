"""Trains a small language model, cut in two stages on two slices, to write Python; `make demo` runs it.

The model is plain JAX: two functions, `front` and `back`, placed on a slice each. The loss between them,
its gradient and the optimizer are ordinary code that the compiler places. A train step is one program.
The text is Python's own standard library, so there is nothing to download.

By default each slice is a mesh of 2x2 devices: batches lie over its axis "data", heads and hidden units over
"model". That is said of parameters and batches only; gradients, AdamW's moments and what moves between the
slices follow. Where there are too few accelerators for that, as on one GPU, a slice is one device, and both
slices share it. On a CPU the devices share the same cores, so more of them make nothing faster: --mesh 1x1
shows what sharding costs here.

At the end, the first steps are taken again by plain `jax.jit`, from the same parameters and batches; the
exit status says whether the losses agree.
"""

from __future__ import annotations

import argparse
import collections
import functools
import itertools
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _devices import connect
from jax.sharding import PartitionSpec as P
from tqdm import tqdm

import pathways as pw

VOCABULARY = 128  # ASCII; every other byte is mapped to the last, unused code
WIDTH, HEADS, BLOCKS = 128, 4, 5
COMPARED_STEPS, TOLERANCE = 50, 1e-4
AXES = ("data", "model")

Batch = tuple[np.ndarray, np.ndarray]
Params = dict[str, Any]
State = tuple[Params, optax.OptState]
Stage = Callable[[Params, Any], jax.Array]


# The text: batches of characters and, for each, the one that follows it.


def read_text() -> tuple[np.ndarray, np.ndarray]:
    """The codes of all characters of the standard library: for training, and held out (every tenth file)."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    train = b"".join(file.read_bytes() for n, file in enumerate(files) if n % 10)
    held_out = b"".join(file.read_bytes() for file in files[::10])
    return encode(train), encode(held_out)


def encode(text: bytes) -> np.ndarray:
    return np.minimum(np.frombuffer(text, np.uint8), VOCABULARY - 1)


def batches(text: np.ndarray, batch: int, length: int, seed: int) -> Iterator[Batch]:
    """Random excerpts without end: inputs and targets, int32 of shape (batch, length)."""
    rng = np.random.default_rng(seed)
    while True:
        starts = rng.integers(len(text) - length, size=(batch, 1))
        excerpts = text[starts + np.arange(length + 1)].astype(np.int32)
        yield excerpts[:, :-1], excerpts[:, 1:]


# The model: a decoder-only transformer with layer norm before each part.


def init_params(rng: np.random.Generator, length: int) -> Params:
    """Parameters of both stages, as float32 numpy arrays."""

    def normal(*shape: int, scale: float) -> np.ndarray:
        return rng.normal(scale=scale, size=shape).astype(np.float32)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return normal(rows, columns, scale=rows**-0.5)

    def block() -> Params:
        return {
            "attention_norm": np.ones(WIDTH, np.float32),
            "qkv": matrix(WIDTH, 3 * WIDTH).reshape(WIDTH, 3, HEADS, -1),
            "project": matrix(WIDTH, WIDTH) / (2 * BLOCKS) ** 0.5,
            "mlp_norm": np.ones(WIDTH, np.float32),
            "up": matrix(WIDTH, 4 * WIDTH),
            "down": matrix(4 * WIDTH, WIDTH) / (2 * BLOCKS) ** 0.5,
        }

    blocks = [block() for _ in range(BLOCKS)]
    return {
        "front": {
            "embed": normal(VOCABULARY, WIDTH, scale=0.02),
            "position": normal(length, WIDTH, scale=0.02),
            "blocks": blocks[: BLOCKS // 2],
        },
        "back": {
            "blocks": blocks[BLOCKS // 2 :],
            "norm": np.ones(WIDTH, np.float32),
            "head": normal(WIDTH, VOCABULARY, scale=0.02),
        },
    }


def param_specs(stage: str) -> Params:
    """How the parameters of a stage lie over its slice: matrices over "model", the rest on every device."""
    block = {
        "attention_norm": P(),
        "qkv": P(None, None, "model"),
        "project": P("model"),
        "mlp_norm": P(),
        "up": P(None, "model"),
        "down": P("model"),
    }
    count = BLOCKS // 2
    if stage == "front":
        return {"embed": P(), "position": P(), "blocks": [block] * count}
    return {"blocks": [block] * (BLOCKS - count), "norm": P(), "head": P(None, "model")}


def normalize(x: jax.Array, scale: jax.Array) -> jax.Array:
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * scale


def apply_block(params: Params, x: jax.Array) -> jax.Array:
    """One block, from (batch, length, width) to the same."""
    q, k, v = jnp.einsum("btw,wchd->cbthd", normalize(x, params["attention_norm"]), params["qkv"])
    attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    x = x + attended.reshape(x.shape) @ params["project"]
    return x + jax.nn.gelu(normalize(x, params["mlp_norm"]) @ params["up"]) @ params["down"]


def front(params: Params, inputs: jax.Array) -> jax.Array:
    """The first stage: from characters (batch, length) to activations (batch, length, width)."""
    x = params["embed"][inputs] + params["position"]
    for block in params["blocks"]:
        x = apply_block(block, x)
    return x


def back(params: Params, x: jax.Array) -> jax.Array:
    """The second stage: from activations to logits (batch, length, vocabulary)."""
    for block in params["blocks"]:
        x = apply_block(block, x)
    return normalize(x, params["norm"]) @ params["head"]


# Training: a loss and a step for the two stages, however they run.


def mean_loss(front: Stage, back: Stage, params: Params, batch: Batch) -> jax.Array:
    """The mean cross-entropy of the next character, in nats."""
    inputs, targets = batch
    logits = back(params["back"], front(params["front"], inputs))
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def update(
    front: Stage, back: Stage, optimizer: optax.GradientTransformation, state: State, batch: Batch
) -> tuple[State, jax.Array]:
    """The state after one more batch, and the loss on that batch."""
    params, optimizer_state = state
    loss, gradients = jax.value_and_grad(mean_loss, argnums=2)(front, back, params, batch)
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
    return (optax.apply_updates(params, updates), optimizer_state), loss


def make_optimizer(steps: int) -> optax.GradientTransformation:
    """AdamW with clipped gradients, a warm-up and then a cosine decay of the learning rate."""
    schedule = optax.warmup_cosine_decay_schedule(
        init_value=0.0, peak_value=2e-3, warmup_steps=min(50, steps // 2), decay_steps=steps
    )
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))


def train(
    title: str, step: Callable[..., Any], state: State, data: Iterator[Batch], steps: int
) -> tuple[State, list[float], float]:
    """Takes some steps; returns the state after them, their losses, and tokens per second."""
    losses: list[float] = []
    pending: collections.deque[jax.Array] = collections.deque()
    bar = tqdm(desc=title, total=steps, unit="step", disable=None)
    started = time.perf_counter()
    tokens = 0

    def read_loss() -> None:
        losses.append(float(pending.popleft()))
        rate = tokens / (time.perf_counter() - started)
        bar.set_postfix_str(f"loss {losses[-1]:.3f}, {rate:,.0f} tokens/s", refresh=False)
        bar.update()

    for inputs, targets in itertools.islice(data, steps):
        state, loss = step(state, (inputs, targets))
        pending.append(loss)
        tokens += inputs.size
        # Reading a loss waits for its step. The newest few stay unread, so that there is always work queued.
        if len(pending) > 4:
            read_loss()
    while pending:
        read_loss()
    bar.close()
    return state, losses, tokens / (time.perf_counter() - started)


def main() -> int:
    options = parse_options()
    os.environ["PW_DUMP_TO"] = str(options.dump_dir)
    shape, overlap = connect(slices=2, shape=options.mesh)
    devices = pw.make_virtual_device_set()
    s0 = devices.add_slice(shape, AXES, overlap=overlap)
    s1 = devices.add_slice(shape, AXES, overlap=overlap)
    # What the placed functions take is all that is said; whatever is made of it lies accordingly.
    front_on_s0 = pw.jit(front, devices=s0, in_shardings=(param_specs("front"), P("data")))
    back_on_s1 = pw.jit(back, devices=s1, in_shardings=(param_specs("back"), P("data")))
    optimizer = make_optimizer(options.steps)

    @pw.program(donate_argnums=0)
    def train_step(state: State, batch: Batch) -> tuple[State, jax.Array]:
        return update(front_on_s0, back_on_s1, optimizer, state, batch)

    @pw.program
    def evaluate(params: Params, batch: Batch) -> jax.Array:
        return mean_loss(front_on_s0, back_on_s1, params, batch)

    @functools.partial(jax.jit, donate_argnums=0)
    def jax_step(state: State, batch: Batch) -> tuple[State, jax.Array]:
        return update(front, back, optimizer, state, batch)

    text, held_out_text = read_text()
    data = functools.partial(batches, text, options.batch, options.seq, options.seed)
    held_out = list(itertools.islice(batches(held_out_text, options.batch, options.seq, seed=0), 16))
    params = init_params(np.random.default_rng(options.seed), options.seq)
    # Numpy arrays: both runs start from them, and donate only their own copies.
    state = jax.device_get((params, optimizer.init(params)))

    def held_out_loss(params: Params) -> float:
        return float(np.mean([evaluate(params, batch) for batch in held_out]))

    sizes = {name: sum(p.size for p in jax.tree.leaves(part)) for name, part in params.items()}
    print(
        f"{sum(sizes.values()):,} parameters: front ({sizes['front']:,}) on {s0.name}, "
        f"back ({sizes['back']:,}) on {s1.name}, each of {s0.size} device(s)\n"
        f"{len(text):,} characters to train on, {len(held_out_text):,} held out"
    )
    compiled = train_step.lower(state, held_out[0]).compile()
    before = held_out_loss(params)
    (params, _), losses, rate = train("pathways", compiled, state, data(), options.steps)
    after = held_out_loss(params)

    compared = min(options.steps, COMPARED_STEPS)
    jax_compiled = jax_step.lower(state, held_out[0]).compile()
    _, jax_losses, jax_rate = train("jax.jit ", jax_compiled, state, data(), compared)
    difference = float(np.abs(np.subtract(losses[:compared], jax_losses)).max())

    cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
    rows = [
        ("", "pathways", "jax.jit"),
        ("held-out loss before", f"{before:.4f}", ""),
        ("held-out loss after", f"{after:.4f}", ""),
        ("loss at step 1", f"{losses[0]:.4f}", f"{jax_losses[0]:.4f}"),
        (f"loss at step {compared}", f"{losses[compared - 1]:.4f}", f"{jax_losses[-1]:.4f}"),
        ("tokens/s", f"{rate:,.0f}", f"{jax_rate:,.0f}"),
        ("launches per step", f"{cost['launches']}", ""),
        ("transfers per step", f"{cost['transfers']}", ""),
        ("bytes moved per step", f"{cost['bytes transferred']:,}", ""),
        *((f"peak bytes on {name}", f"{m.peak_memory_in_bytes:,}", "") for name, m in memory.items()),
    ]
    print()
    for label, ours, theirs in rows:
        print(f"{label:22}{ours:>14}{theirs:>14}".rstrip())
    print(f"\nIR after each phase: {options.dump_dir}/train_step.*.mlir")
    verdict = "agree" if difference <= TOLERANCE else "DISAGREE"
    print(f"losses of the first {compared} steps {verdict}: largest difference {difference:.1e}")
    return 0 if difference <= TOLERANCE else 1


def mesh_shape(text: str) -> tuple[int, int]:
    """The sizes of both axes, from text such as 2x1."""
    data, model = map(int, text.split("x"))
    return data, model


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small language model on two slices.")
    parser.add_argument("--steps", type=int, default=500, help="train steps (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="excerpts in a batch (default: %(default)s)")
    parser.add_argument("--seq", type=int, default=64, help="characters in an excerpt (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of parameters and batches (default: %(default)s)"
    )
    parser.add_argument(
        "--mesh",
        type=mesh_shape,
        default="2x2",
        help='devices of each slice over "data" and "model" (default: %(default)s)',
    )
    parser.add_argument(
        "--dump-dir",
        type=Path,
        default=Path(os.environ.get("PW_DUMP_TO") or "build/demo/ir"),
        help="where to write the IR (default: PW_DUMP_TO, or build/demo/ir)",
    )
    parser.add_argument("--quick", action="store_true", help="take only 12 steps")
    options = parser.parse_args()
    if options.quick:
        options.steps = 12
    if options.steps < 1:
        parser.error(f"--steps {options.steps}: expected at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())

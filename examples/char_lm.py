"""Small language model of Python code, trained as a pipeline over four slices; `make demo` runs it.

The model is plain JAX: four functions, its stages, placed on a slice each. `pw.accumulate` cuts every batch
into microbatches, which go through the stages at the same time in the order of the schedule. The loss after
the last stage, the gradients and the optimizer are ordinary code that the compiler places. A train step is
one program.
The text is Python's own standard library, so there is nothing to download.

By default each slice is a mesh of 2x1 devices: batches are sharded over its axis "data", heads and hidden
units over "model". Only parameters and batches have specs; gradients, AdamW's moments and transfers between
the slices follow. With too few accelerators for that, as on one GPU, a slice is one device, and all slices
share it. On a CPU the devices share the same cores, so more of them make nothing faster: --mesh 1x1 shows
what sharding costs here, and --slices 1 what the pipeline does. With fewer slices than stages, slices take
turns: --slices 2 --schedule interleaved-1f1b has two stages on each.

At the end, a few more steps are measured and drawn below the planned one, on a page for the browser; and the
first steps are taken again by plain `jax.jit`, from the same parameters and batches; the
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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _devices import connect
from jax.sharding import PartitionSpec as P
from tqdm import tqdm

import pathways as pw
from pathways.passes.analysis.measured.events import EventLog
from pathways.passes.analysis.measured.trace_file import read_trace

VOCABULARY = 128  # ASCII; every other byte is mapped to the last, unused code
WIDTH, HEADS, BLOCKS, STAGES = 128, 4, 4, 4
COMPARED_STEPS, TRACED_STEPS, TOLERANCE = 50, 3, 1e-4
AXES = ("data", "model")
# Shardings of parameters over a slice, by name; the others are replicated.
SPECS = {
    "qkv": P(None, None, "model"),
    "project": P("model"),
    "up": P(None, "model"),
    "down": P("model"),
    "head": P(None, "model"),
}

Batch = tuple[np.ndarray, np.ndarray]
Params = dict[str, Any]
State = tuple[list[Params], optax.OptState]
Stage = Callable[[Params, Any], jax.Array]


# The text: batches of characters and, for each, the one that follows it.


def read_text() -> tuple[np.ndarray, np.ndarray]:
    """Returns the codes of all characters of the standard library: for training, and held out (every tenth
    file)."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    train = b"".join(file.read_bytes() for n, file in enumerate(files) if n % 10)
    held_out = b"".join(file.read_bytes() for file in files[::10])
    return encode(train), encode(held_out)


def encode(text: bytes) -> np.ndarray:
    return np.minimum(np.frombuffer(text, np.uint8), VOCABULARY - 1)


def batches(text: np.ndarray, batch: int, length: int, seed: int) -> Iterator[Batch]:
    """Yields random excerpts without end: inputs and targets, int32 of shape (batch, length)."""
    rng = np.random.default_rng(seed)
    while True:
        starts = rng.integers(len(text) - length, size=(batch, 1))
        excerpts = text[starts + np.arange(length + 1)].astype(np.int32)
        yield excerpts[:, :-1], excerpts[:, 1:]


# The model: a decoder-only transformer with layer norm before each block.


def init_params(rng: np.random.Generator, length: int) -> list[Params]:
    """Returns the parameters of each stage, as float32 numpy arrays."""

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

    params: list[Params] = [{"blocks": [block() for _ in range(BLOCKS // STAGES)]} for _ in range(STAGES)]
    params[0] |= {
        "embed": normal(VOCABULARY, WIDTH, scale=0.02),
        "position": normal(length, WIDTH, scale=0.02),
    }
    params[-1] |= {"norm": np.ones(WIDTH, np.float32), "head": normal(WIDTH, VOCABULARY, scale=0.02)}
    return params


def param_specs(params: Params) -> Params:
    """Returns the shardings of a stage's parameters over its slice."""
    return jax.tree_util.tree_map_with_path(lambda path, _: SPECS.get(path[-1].key, P()), params)


def normalize(x: jax.Array, scale: jax.Array) -> jax.Array:
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * scale


def apply_block(params: Params, x: jax.Array) -> jax.Array:
    """Applies one block, from (batch, length, width) to the same."""
    q, k, v = jnp.einsum("btw,wchd->cbthd", normalize(x, params["attention_norm"]), params["qkv"])
    attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    x = x + attended.reshape(x.shape) @ params["project"]
    return x + jax.nn.gelu(normalize(x, params["mlp_norm"]) @ params["up"]) @ params["down"]


def front(params: Params, inputs: jax.Array) -> jax.Array:
    """Runs the first stage: from characters (batch, length) to activations (batch, length, width)."""
    return middle(params, params["embed"][inputs] + params["position"])


def middle(params: Params, x: jax.Array) -> jax.Array:
    """Runs a stage between: from activations to activations."""
    for block in params["blocks"]:
        x = apply_block(block, x)
    return x


def back(params: Params, x: jax.Array) -> jax.Array:
    """Runs the last stage: from activations to logits (batch, length, vocabulary)."""
    return normalize(middle(params, x), params["norm"]) @ params["head"]


MODEL: list[Stage] = [front, *[middle] * (STAGES - 2), back]


def place(slices: list[pw.VirtualSlice], params: list[Params]) -> list[Stage]:
    """Places the stages on slices, round robin."""
    # Only the arguments of placed functions have specs; the shardings of all other values follow.
    return [
        pw.jit(stage, devices=slices[n % len(slices)], in_shardings=(param_specs(part), P("data")))
        for n, (stage, part) in enumerate(zip(MODEL, params, strict=True))
    ]


# Training: a loss and a step for the stages, however they run.


def mean_loss(stages: list[Stage], params: list[Params], batch: Batch) -> jax.Array:
    """Returns the mean cross-entropy of the next character, in nats."""
    x, targets = batch
    for stage, part in zip(stages, params, strict=True):
        x = stage(part, x)
    return optax.softmax_cross_entropy_with_integer_labels(x, targets).mean()


def update(
    stages: list[Stage],
    optimizer: optax.GradientTransformation,
    microbatches: int,
    state: State,
    batch: Batch,
) -> tuple[State, jax.Array]:
    """Returns the state after one more batch, and the loss on that batch."""
    params, optimizer_state = state
    loss_fn = functools.partial(mean_loss, stages)
    loss, gradients = pw.accumulate(jax.value_and_grad(loss_fn), microbatches)(params, batch)
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
    return (optax.apply_updates(params, updates), optimizer_state), loss


def make_optimizer(steps: int) -> optax.GradientTransformation:
    """Returns AdamW with clipped gradients, a warm-up and then a cosine decay of the learning rate."""
    schedule = optax.warmup_cosine_decay_schedule(
        init_value=0.0, peak_value=2e-3, warmup_steps=min(50, steps // 2), decay_steps=steps
    )
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))


class Speed(NamedTuple):
    """Speed of steps: tokens per second, CPU seconds of a step, and the number of busy cores."""

    tokens: float
    step: float
    cores: float


def train(
    title: str, step: Callable[..., Any], state: State, data: Iterator[Batch], steps: int
) -> tuple[State, list[float], Speed]:
    """Runs some steps; returns the state after them, their losses, and their speed."""
    losses: list[float] = []
    pending: collections.deque[jax.Array] = collections.deque()
    bar = tqdm(desc=title, total=steps, unit="step", disable=None)
    started, computed = time.perf_counter(), time.process_time()
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
    wall, computed = time.perf_counter() - started, time.process_time() - computed
    return state, losses, Speed(tokens / wall, computed / steps, computed / wall)


def measure(step: Callable[..., Any], state: State, data: Iterator[Batch], folder: Path) -> EventLog:
    """Returns the timeline of the last of a few steps; the trace of all of them is left in the folder."""
    trace = folder / "train_step.trace.json"
    with pw.trace(trace):
        for batch in itertools.islice(data, TRACED_STEPS):
            state, _ = step(state, batch)
    return read_trace(trace.read_bytes())[-1]


def main() -> int:
    options = parse_options()
    os.environ["PW_DUMP_TO"] = str(options.dump_dir)
    # A GPU would round products to few bits, which amplifies small differences.
    jax.config.update("jax_default_matmul_precision", "float32")
    shape, overlap = connect(slices=options.slices, shape=options.mesh, hosts=options.hosts)
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice(shape, AXES, overlap=overlap) for _ in range(options.slices)]
    params = init_params(np.random.default_rng(options.seed), options.seq)
    stages = place(slices, params)
    optimizer = make_optimizer(options.steps)

    @pw.program(schedule=options.schedule, donate_argnums=0)
    def train_step(state: State, batch: Batch) -> tuple[State, jax.Array]:
        return update(stages, optimizer, options.microbatches, state, batch)

    @pw.program
    def evaluate(params: list[Params], batch: Batch) -> jax.Array:
        return mean_loss(stages, params, batch)

    @functools.partial(jax.jit, donate_argnums=0)
    def jax_step(state: State, batch: Batch) -> tuple[State, jax.Array]:
        return update(MODEL, optimizer, options.microbatches, state, batch)

    text, held_out_text = read_text()
    data = functools.partial(batches, text, options.batch, options.seq, options.seed)
    held_out = list(itertools.islice(batches(held_out_text, options.batch, options.seq, seed=0), 16))
    # Numpy arrays: both runs start from them, and donate only their own copies.
    state = jax.device_get((params, optimizer.init(params)))

    def held_out_loss(params: list[Params]) -> float:
        return float(np.mean([evaluate(params, batch) for batch in held_out]))

    print(
        f"{sum(p.size for p in jax.tree.leaves(params)):,} parameters in {STAGES} stages on "
        f"{len(slices)} slice(s) of {slices[0].size} device(s); "
        f"{options.microbatches} microbatches, schedule {options.schedule}\n"
        f"{len(text):,} characters to train on, {len(held_out_text):,} held out"
    )
    compiled = train_step.lower(state, held_out[0]).compile()
    before = held_out_loss(params)
    trained, losses, speed = train("pathways", compiled, state, data(), options.steps)
    after = held_out_loss(trained[0])
    memory = compiled.memory_analysis()
    planned = compiled.timeline()
    measured = measure(compiled, trained, data(), options.dump_dir)
    page = options.dump_dir / "train_step.html"
    planned.save_html(page, measured)

    compared = min(options.steps, COMPARED_STEPS)
    jax_compiled = jax_step.lower(state, held_out[0]).compile()
    _, jax_losses, jax_speed = train("jax.jit ", jax_compiled, state, data(), compared)
    difference = float(np.abs(np.subtract(losses[:compared], jax_losses)).max())

    cost = compiled.cost_analysis()
    cores = [
        ("ms of cores per step", f"{1000 * speed.step:.0f}", f"{1000 * jax_speed.step:.0f}"),
        ("cores busy", f"{speed.cores:.2f}", f"{jax_speed.cores:.2f}"),
    ]
    rows = [
        ("", "pathways", "jax.jit"),
        ("held-out loss before", f"{before:.4f}", ""),
        ("held-out loss after", f"{after:.4f}", ""),
        ("loss at step 1", f"{losses[0]:.4f}", f"{jax_losses[0]:.4f}"),
        (f"loss at step {compared}", f"{losses[compared - 1]:.4f}", f"{jax_losses[-1]:.4f}"),
        ("tokens/s", f"{speed.tokens:,.0f}", f"{jax_speed.tokens:,.0f}"),
        *([] if options.hosts else cores),
        ("launches per step", f"{cost['launches']}", ""),
        ("transfers per step", f"{cost['transfers']}", ""),
        ("bytes moved per step", f"{cost['bytes transferred']:,}", ""),
        ("bubble as planned", f"{planned.mean_bubble:.1%}", ""),
        ("bubble as measured", f"{measured.mean_bubble:.1%}", ""),
        *((f"peak bytes on {name}", f"{m.peak_memory_in_bytes:,}", "") for name, m in memory.items()),
    ]
    print()
    for label, ours, theirs in rows:
        print(f"{label:22}{ours:>14}{theirs:>14}".rstrip())
    share = f"{speed.tokens / jax_speed.tokens:.0%} of the tokens/s of jax.jit"
    if options.hosts:
        print(f"\n{share}; {len(slices)} worker processes share {os.cpu_count()} cores.")
    else:
        print(
            f"\n{share}, because "
            f"{len(slices) * slices[0].size} devices share {os.cpu_count()} cores: "
            f"{speed.cores:.2f} were busy, {jax_speed.cores:.2f} with jax.jit.\n"
            f"A step takes {1000 * speed.step:.0f} ms of them, {1000 * jax_speed.step:.0f} ms with jax.jit: "
            f"{options.microbatches} microbatches are {cost['launches']} small launches "
            f"and {cost['transfers']} transfers."
        )
    print(f"\nIR after each phase: {options.dump_dir}/train_step.*.mlir")
    print(f"a step as planned and as measured, to open in a browser: {page}")
    verdict = "agree" if difference <= TOLERANCE else "DISAGREE"
    print(f"losses of the first {compared} steps {verdict}: largest difference {difference:.1e}")
    return 0 if difference <= TOLERANCE else 1


def mesh_shape(text: str) -> tuple[int, int]:
    """Returns the sizes of both axes, from text such as 2x1."""
    data, model = map(int, text.split("x"))
    return data, model


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small language model, pipelined over slices.")
    parser.add_argument("--steps", type=int, default=300, help="train steps (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="excerpts in a batch (default: %(default)s)")
    parser.add_argument("--seq", type=int, default=64, help="characters in an excerpt (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of parameters and batches (default: %(default)s)"
    )
    parser.add_argument(
        "--mesh",
        type=mesh_shape,
        default="2x1",
        help='devices of each slice over "data" and "model" (default: %(default)s)',
    )
    parser.add_argument(
        "--slices",
        type=int,
        choices=range(1, STAGES + 1),
        default=STAGES,
        help=f"slices, which take turns at the {STAGES} stages (default: %(default)s)",
    )
    parser.add_argument("--hosts", action="store_true", help="each slice in a worker process of its own")
    parser.add_argument(
        "--microbatches", type=int, default=8, help="parts of each batch (default: %(default)s)"
    )
    parser.add_argument(
        "--schedule",
        default="1f1b",
        help="gpipe, 1f1b, zb-h1 or another policy, or a CSV file (default: %(default)s)",
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
    if options.microbatches < 1:
        parser.error(f"--microbatches {options.microbatches}: expected at least 1")
    parts = options.microbatches * options.mesh[0]
    if options.batch % parts:
        parser.error(f"--batch {options.batch}: expected a multiple of {parts}, microbatches x data axis")
    if os.environ.get("PW_TRACE"):
        parser.error("PW_TRACE is set: this example traces a few steps itself")
    return options


if __name__ == "__main__":
    sys.exit(main())

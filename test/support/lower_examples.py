"""Lowers examples, by default all: `python lower_examples.py FOLDER [NAME ...]` writes forms and bundles."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import pathways as pw
from pathways.compiler.lower.phases import PHASES
from pathways.tools.inputs import targets

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def actor_learner() -> Any:
    """The step of the learner."""
    import actor_learner as example

    act, learn, state = example.build(*_two_slices())
    return learn.lower(state, act(state[0], jax.random.key(0)))


def char_lm() -> Any:
    """Two microbatches through four stages on as many slices, with a batch of short excerpts."""
    import char_lm as example

    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice((2, 1), example.AXES) for _ in range(example.STAGES)]
    params = example.init_params(np.random.default_rng(0), length=8)
    stages, optimizer = example.place(slices, params), example.make_optimizer(steps=1)
    state = jax.device_get((params, optimizer.init(params)))

    @pw.program(schedule="1f1b", donate_argnums=0)
    def train_step(state: Any, batch: Any) -> Any:
        return example.update(stages, optimizer, 2, state, batch)

    return train_step.lower(state, (np.zeros((4, 8), np.int32), np.zeros((4, 8), np.int32)))


def encoder_decoder() -> Any:
    return _built("encoder_decoder")


def equinox_autoencoder() -> Any:
    return _built("equinox_autoencoder")


def flax_linen() -> Any:
    return _built("flax_linen")


def flax_nnx() -> Any:
    return _built("flax_nnx")


def kv_decode() -> Any:
    """All turns of one call."""
    import kv_decode as example

    decode, (caches, last, done), params = example.build(*_two_slices())
    return decode.lower(caches, params, last, done)


def figure2() -> Any:
    return _lower("figure2.py:f", jax.ShapeDtypeStruct((2,), "float32"))


def train() -> Any:
    """A step of gradient descent of its model."""
    import train as example

    devices = pw.make_virtual_device_set()
    s0, s1 = (devices.add_slice((1,), ("data",)) for _ in range(2))
    front, back = pw.jit(example.front, devices=s0), pw.jit(example.back, devices=s1)
    keys = jax.random.split(jax.random.key(0))
    params = jax.device_get({"front": example.init_front(keys[0]), "back": example.init_back(keys[1])})

    def loss_of(params: Any, batch: Any) -> Any:
        return back(params["back"], front(params["front"], batch["inputs"]), batch["targets"])

    @pw.program(schedule="1f1b", donate_argnums=0)
    def train_step(params: Any, batch: Any) -> Any:
        grads = pw.accumulate(jax.grad(loss_of), example.MICROBATCHES)(params, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    tokens = np.zeros((example.BATCH, example.LENGTH), np.int32)
    return train_step.lower(params, {"inputs": tokens, "targets": tokens})


def transformer_sharded() -> Any:
    """The step of AdamW."""
    import transformer_sharded as example

    devices = pw.make_virtual_device_set()
    on_s0, on_s1 = (devices.add_slice((2, 2), example.AXES) for _ in range(2))
    batch_spec = jax.sharding.PartitionSpec("data")
    front = pw.jit(example.front, devices=on_s0, in_shardings=(example.FRONT_SPECS, batch_spec))
    back = pw.jit(example.back, devices=on_s1, in_shardings=(example.BACK_SPECS, batch_spec))
    optimizer = optax.adamw(1e-3)
    params = example.init_params(np.random.default_rng(0), "float32")
    state = params, jax.device_get(optimizer.init(params))
    tokens = np.zeros((example.BATCH, example.LENGTH), np.int32)
    train_step = pw.program(example.make_step(front, back, optimizer), donate_argnums=0)
    return train_step.lower(state, (tokens, tokens))


def two_slices() -> Any:
    return _lower("two_slices.mlir")


PROGRAMS = (
    actor_learner,
    char_lm,
    encoder_decoder,
    equinox_autoencoder,
    figure2,
    flax_linen,
    flax_nnx,
    kv_decode,
    train,
    transformer_sharded,
    two_slices,
)


def _two_slices() -> list[pw.VirtualSlice]:
    devices = pw.make_virtual_device_set()
    return [devices.add_slice((1,), ("x",)) for _ in range(2)]


def _built(name: str) -> Any:
    """The train step that an example builds."""
    step, state, batch = importlib.import_module(name).build(*_two_slices())
    return step.lower(state, batch)


def _lower(name: str, *arguments: Any) -> Any:
    target = targets.find(str(EXAMPLES / name))
    return target.lower(arguments or target.example_args(), {}, policy=None, fuse=False)


def main(folder: Path, *names: str) -> None:
    jax.config.update("jax_num_cpu_devices", 3)  # Figure 2 takes its devices as it is imported.
    sys.path.insert(0, str(EXAMPLES))
    for program in PROGRAMS:
        if names and program.__name__ not in names:
            continue
        lowered = program()
        for phase in PHASES[PHASES.index("placed") if program is two_slices else 0 :]:
            (folder / f"{program.__name__}.{phase}.mlir").write_text(lowered.as_text(phase))
        lowered.save(folder / f"{program.__name__}.pwb")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

"""Lowers examples: `python lower_examples.py FOLDER NAME ...` writes their forms."""

from __future__ import annotations

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


def char_lm() -> Any:
    """Returns two microbatches through four stages on as many slices, with a batch of short excerpts."""
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


def kv_decode() -> Any:
    """Returns all iterations of one call."""
    import kv_decode as example

    devices = pw.make_virtual_device_set()
    decode, (caches, last, done), params = example.build(*(devices.add_slice((1,), ("x",)) for _ in range(2)))
    return decode.lower(caches, params, last, done)


def figure2() -> Any:
    target = targets.find(f"{EXAMPLES}/figure2.py:f")
    return target.lower((jax.ShapeDtypeStruct((2,), "float32"),), {}, schedule=None, fuse=False)


def transformer_sharded() -> Any:
    """Returns the step of AdamW."""
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


PROGRAMS = {function.__name__: function for function in (char_lm, figure2, kv_decode, transformer_sharded)}


def main(folder: Path, *names: str) -> None:
    jax.config.update("jax_num_cpu_devices", 3)  # Figure 2 requests its devices at import.
    sys.path.insert(0, str(EXAMPLES))
    for name in names:
        lowered = PROGRAMS[name]()
        for phase in PHASES:
            (folder / f"{name}.{phase}.mlir").write_text(lowered.as_text(phase))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

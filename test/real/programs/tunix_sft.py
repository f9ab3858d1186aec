"""Tunix: supervised fine-tuning of its toy model on a 2x4 mesh, of all weights and of LoRA's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pathwaysutils
from flax import nnx
from report import report
from tunix.sft.peft_trainer import PeftTrainer, TrainingConfig, TrainingInput
from tunix.tests import test_common
from tunix.utils import compat

STEPS = 6

if "proxy" in (jax.config.jax_platforms or ""):
    pathwaysutils.initialize()


def model_input(batch):
    tokens = batch.input_tokens
    return {
        "input_tokens": tokens,
        "input_mask": batch.input_mask,
        "positions": jnp.arange(tokens.shape[1]),
        "attention_mask": jnp.ones_like(tokens),
    }


def tune(lora: bool) -> None:
    devices = sorted(jax.devices(), key=lambda device: device.id)
    mesh = jax.sharding.Mesh(np.array(devices).reshape(2, -1), ("fsdp", "tp"))
    model = test_common.ToyTransformer(config=test_common.ModelConfig(), rngs=nnx.Rngs(0))
    if lora:
        model = test_common.get_lora_model(model, mesh=mesh)
    tokens = np.arange(4 * 16 * STEPS).reshape(STEPS, 4, 16) % 256
    batches = [TrainingInput(input_tokens=x, input_mask=np.ones(x.shape, np.int32)) for x in tokens]
    config = TrainingConfig(eval_every_n_steps=3, max_steps=STEPS)
    trainer = PeftTrainer(model, optax.adamw(1e-2), config).with_gen_model_input_fn(model_input)
    with compat.set_mesh(mesh):
        trainer.train(batches, batches[:2])
    name = "lora" if lora else "full"
    for mode in ("train", "eval"):
        report(f"{name} {mode}", list(trainer.metrics_logger.get_metric_history("", "loss", mode)))
    report(name, nnx.to_pure_dict(nnx.state(trainer.model, nnx.LoRAParam if lora else nnx.Param)))


for lora in (False, True):
    tune(lora)

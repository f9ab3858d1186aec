"""Tunix: GRPO on its toy model, whose trainer and rollout have meshes of their own: two islands on hosts."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pathwaysutils
from flax import nnx
from report import report
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rl_cluster import ClusterConfig, RLCluster, RLTrainingConfig, Role
from tunix.rl.rollout.base_rollout import RolloutConfig
from tunix.tests import test_common

STEPS = 4
PROMPTS = ["input string", "hello world", "My name", "hello there"]

if "proxy" in (jax.config.jax_platforms or ""):
    pathwaysutils.initialize()

devices = sorted(jax.devices(), key=lambda device: device.id)
half = len(devices) // 2
trainer, rollout = (
    jax.sharding.Mesh(np.array(part).reshape(2, -1), ("fsdp", "tp"))
    for part in (devices[:half], devices[half:])
)
vocabulary = test_common.MockVocab()
config = test_common.ModelConfig(vocab_size=vocabulary.GetPieceSize())
model, reference = (test_common.ToyTransformer(config=config, rngs=nnx.Rngs(0)) for _ in range(2))
cluster = RLCluster(
    actor=model,
    reference=reference,
    tokenizer=vocabulary,
    cluster_config=ClusterConfig(
        role_to_mesh={Role.ACTOR: trainer, Role.REFERENCE: trainer, Role.ROLLOUT: rollout},
        rollout_engine="vanilla",
        training_config=RLTrainingConfig(
            actor_optimizer=optax.adamw(1e-2), eval_every_n_steps=STEPS + 1, max_steps=STEPS
        ),
        rollout_config=RolloutConfig(
            max_tokens_to_generate=10, max_prompt_length=32, kv_cache_size=64, seed=jax.random.key(0)
        ),
    ),
)


def reward(prompts, completions, **_):
    return [float(len(text) % 7) for text in completions]


learner = GRPOLearner(cluster, GRPOConfig(num_generations=2, num_iterations=1), reward)
batches = [{"prompts": np.array(prompts)} for prompts in (PROMPTS[:2], PROMPTS[2:])]
learner.train(batches * (STEPS // 2))
for role, trained in (("actor", cluster.actor_trainer.model), ("rollout", cluster.rollout.model())):
    report(role, nnx.to_pure_dict(nnx.state(trained, nnx.Param)))

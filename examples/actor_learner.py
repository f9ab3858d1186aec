"""An actor and a learner, each a program on a slice of its own, as in reinforcement learning.

The actor sees a context, draws an action from the policy, and is rewarded if the action is the right one.
The learner takes a step of REINFORCE on the actor's experience. Both are enqueued without waiting, so the
actor uses the previous weights while the learner computes the next. `act.place` copies weights to the
actor, which keeps them while the learner donates its own.

What differs from plain JAX:

    +import pathways as pw

    -def build() -> tuple[Any, Any, Any]:
    +def build(s0: pw.VirtualSlice, s1: pw.VirtualSlice) -> tuple[Any, Any, Any]:

    -    act = jax.jit(play)
    +    act = pw.program(pw.jit(play, devices=s0))

    -    learn = jax.jit(update, donate_argnums=0)
    +    learn = pw.program(pw.jit(update, devices=s1), donate_argnums=0)

    -    state = jax.jit(born)(jax.random.key(0))
    +    state = pw.program(pw.jit(born, devices=s1))(jax.random.key(0))

    -        weights = jax.tree.map(jnp.copy, state[0])
    +        weights, _ = act.place(state[0], key)

    -    act, learn, state = build()
    +    act, learn, state = build(*slices(2))
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from _devices import slices

import pathways as pw

CONTEXTS, ACTIONS, BATCH, WIDTH = 16, 4, 256, 64
OPTIMIZER = optax.adam(3e-3)


def born(key: jax.Array) -> Any:
    """Returns weights, and the moments of the optimizer."""
    keys = jax.random.split(key)
    weights = {
        "hidden": jax.random.normal(keys[0], (CONTEXTS, WIDTH)) / 4,
        "out": jax.random.normal(keys[1], (WIDTH, ACTIONS)) / 8,
    }
    return weights, OPTIMIZER.init(weights)


def policy(weights: Any, contexts: jax.Array) -> jax.Array:
    """Returns the logits of the actions (batch, ACTIONS), of contexts (batch, CONTEXTS)."""
    return jnp.tanh(contexts @ weights["hidden"]) @ weights["out"]


def play(weights: Any, key: jax.Array) -> dict[str, jax.Array]:
    """Returns contexts, the actions that the policy draws, and their rewards."""
    keys = jax.random.split(key)
    contexts = jax.random.normal(keys[0], (BATCH, CONTEXTS))
    actions = jax.random.categorical(keys[1], policy(weights, contexts))
    right = jnp.argmax(contexts[:, :ACTIONS], axis=-1)
    return {"contexts": contexts, "actions": actions, "rewards": (actions == right).astype("float32")}


def update(state: Any, seen: dict[str, jax.Array]) -> tuple[Any, jax.Array]:
    """Returns the state after one step of REINFORCE with the mean reward as its baseline, and that mean."""
    weights, moments = state
    mean = seen["rewards"].mean()

    def loss_of(weights: Any) -> jax.Array:
        logits = policy(weights, seen["contexts"])
        surprise = optax.softmax_cross_entropy_with_integer_labels(logits, seen["actions"])
        return (surprise * (seen["rewards"] - mean)).mean()

    updates, moments = OPTIMIZER.update(jax.grad(loss_of)(weights), moments, weights)
    return (optax.apply_updates(weights, updates), moments), mean


def build(s0: pw.VirtualSlice, s1: pw.VirtualSlice) -> tuple[Any, Any, Any]:
    """Returns the actor, the learner, and the state of the learner."""
    act = pw.program(pw.jit(play, devices=s0))
    learn = pw.program(pw.jit(update, devices=s1), donate_argnums=0)
    state = pw.program(pw.jit(born, devices=s1))(jax.random.key(0))
    return act, learn, state


def train(act: Any, learn: Any, state: Any, steps: int) -> list[float]:
    """Returns the mean rewards of some steps; the actor uses the weights of the step before."""
    rewards, seen = [], None
    for key in jax.random.split(jax.random.key(1), steps):
        weights, _ = act.place(state[0], key)
        if seen is not None:
            state, reward = learn(state, seen)
            rewards.append(reward)
        seen = act(weights, key)
    return [float(reward) for reward in rewards]


def main() -> None:
    act, learn, state = build(*slices(2))
    rewards = train(act, learn, state, steps=200)
    print(f"mean reward: {sum(rewards[:20]) / 20:.2f} at first, {sum(rewards[-20:]) / 20:.2f} at last")


if __name__ == "__main__":
    main()

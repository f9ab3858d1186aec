"""A policy of your own: `1f1b` whose stages go further ahead, for links that take long.

    pw-compile examples/custom_policy.py:step --compile-to=placed -o placed.mlir
    pw-sim placed.mlir --schedule 1f1b --schedule examples/custom_policy.py:Ahead

docs/extending.md explains each line.
"""

import dataclasses

import jax
import jax.numpy as jnp
from _devices import slices

import pathways as pw
from pathways.extending import Action, Order, Pipeline, PolicyError


@dataclasses.dataclass(frozen=True)
class Ahead:
    """Does as many forwards before its first backward as `1f1b`, and `more`."""

    more: int = 1

    def __call__(self, pipeline: Pipeline) -> Order:
        if pipeline.width < len(pipeline.slices) or not pipeline.backward:
            raise PolicyError("needs one stage on each slice, and backwards")
        orders: Order = [[] for _ in range(pipeline.width)]
        for stage, place in enumerate(pipeline.slices):
            ahead = pipeline.to_loss[stage] + self.more
            for n in range(pipeline.microbatches + ahead):
                # A microbatch is `ahead` iterations between its forward and its backward.
                if n >= ahead:
                    orders[place].append(Action(stage, "B", n - ahead))
                if n < pipeline.microbatches:
                    orders[place].append(Action(stage, "F", n))
        return orders


stages = [pw.jit(lambda w, x: jnp.tanh(x @ w), devices=each) for each in slices(2)]


def loss(params: list[jax.Array], x: jax.Array) -> jax.Array:
    for stage, w in zip(stages, params, strict=True):
        x = stage(w, x)
    return jnp.mean(x**2)


@pw.program(schedule=Ahead(more=1))
def step(params: list[jax.Array], x: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    return pw.accumulate(jax.value_and_grad(loss), 4)(params, x)


example_args = [jnp.eye(8)] * 2, jnp.ones((16, 8))

if __name__ == "__main__":
    value, _ = step(*example_args)
    print(f"loss {value:.4f}")
    print(step.lower(*example_args).compile().timeline())

"""Programs for Shardy's MPMD front end, which are plain JAX without it.

`test/e2e/mpmd` holds what the front end makes of them; `lower_mpmd.py` writes it there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P


class Plain:
    """What the front end offers, as plain JAX: names say nothing."""

    @staticmethod
    def named_computation(fun: Callable[..., Any], *, name: str) -> Callable[..., Any]:
        return fun

    @staticmethod
    def named_tensor(value: Any, *, name: str) -> Any:
        return value

    @staticmethod
    def call(fun: Callable[..., Any], *, call_counter: int | None = None) -> Callable[..., Any]:
        return fun


@dataclasses.dataclass(frozen=True)
class MpmdProgram:
    """A function, and how it is placed.

    Attributes:
      make: makes the function of the front end, or of what stands for it.
      args: its arguments.
      meshes: how many there are, and of how many devices each.
      assignment: the mesh of each name; also its stage.
      donate: the numbers of the arguments that are donated.
      specs: how flat arguments lie over their mesh, by their numbers.
      schedule: the name of the pipeline schedule.
    """

    make: Callable[[Any], Callable[..., Any]]
    args: Sequence[Any]
    meshes: tuple[int, int]
    assignment: Mapping[str, int]
    donate: tuple[int, ...] = ()
    specs: Mapping[int, P] = dataclasses.field(default_factory=dict)
    schedule: str | None = None

    def topology(self) -> dict[str, jax.sharding.Mesh]:
        count, size = self.meshes
        devices = np.array(jax.devices()[: count * size]).reshape(count, size)
        return {f"mesh{n}": jax.sharding.Mesh(devices[n], ("x",)) for n in range(count)}

    def plain(self) -> Callable[..., Any]:
        return self.make(Plain)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def layers(front: Any, stages: int) -> Callable[..., Any]:
    """The loss of a chain of stages."""

    def loss(params: Sequence[Any], x: Any) -> Any:
        for n, w in enumerate(params):
            last = n == stages - 1
            stage = (lambda w, x: jnp.mean((x @ w) ** 2)) if last else (lambda w, x: jnp.tanh(x @ w))
            x = front.named_computation(stage, name=f"stage{n}")(w, x)
        return x

    return loss


def two_stages(front: Any) -> Callable[..., Any]:
    def step(params: Any, x: Any, unused: Any) -> Any:
        loss, gradients = jax.value_and_grad(layers(front, 2))(params["w"], x)
        return {
            "loss": loss,
            "params": {"w": [w - 0.1 * g for w, g in zip(params["w"], gradients, strict=True)]},
        }

    return step


def pipeline(stages: int, microbatches: int) -> Callable[[Any], Callable[..., Any]]:
    def make(front: Any) -> Callable[..., Any]:
        loss = layers(front, stages)

        def step(params: Any, xs: Any) -> Any:
            total: Any = None
            for n in range(microbatches):
                # One for each: the front end counts calls.
                one = front.call(lambda params, x: jax.value_and_grad(loss)(params, x), call_counter=n)
                value = one(params, xs[n])
                total = value if total is None else jax.tree.map(jnp.add, total, value)
            return total[0], [w - 0.1 * g for w, g in zip(params, total[1], strict=True)]

        return step

    return make


def stages(count: int) -> dict[str, int]:
    return {f"stage{n}": n for n in range(count)}


PROGRAMS: dict[str, MpmdProgram] = {
    "two_stages": MpmdProgram(
        two_stages,
        ({"w": [normal(4, 4), normal(4, 3)]}, normal(8, 4), normal(7)),
        (2, 1),
        stages(2),
        donate=(0, 2),
    ),
    "sharded": MpmdProgram(
        pipeline(2, 2),
        ([normal(4, 8), normal(8, 4)], normal(2, 8, 4)),
        (2, 4),
        stages(2),
        donate=(0,),
        specs={0: P(None, "x"), 1: P("x"), 2: P(None, "x")},
        schedule="ONE_FWD_ONE_BWD",
    ),
}

"""Programs for Shardy's MPMD front end, which are plain JAX without it.

`test/e2e/mpmd` holds the output of the front end for them; `lower_mpmd.py` writes it there.
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
    """Functions of the front end, as plain JAX: names have no effect."""

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
    """Function, and its placement.

    Attributes:
      make: returns the function for the front end, or for its stand-in.
      args: its arguments.
      meshes: the numbers of the devices of each mesh.
      assignment: the mesh of each name.
      staged: whether names are also the names of stages.
      donate: the numbers of the arguments that are donated.
      specs: the shardings of flat arguments over their mesh, by their numbers.
      schedule: the name of the pipeline schedule.
      forms: the forms that are stored.
    """

    make: Callable[[Any], Callable[..., Any]]
    args: Sequence[Any]
    meshes: Sequence[Sequence[int]]
    assignment: Mapping[str, int]
    staged: bool = True
    donate: tuple[int, ...] = ()
    specs: Mapping[int, P] = dataclasses.field(default_factory=dict)
    schedule: str | None = None
    forms: Sequence[str] = ("call", "fragment")

    def topology(self) -> dict[str, jax.sharding.Mesh]:
        devices = jax.devices()
        return {
            f"mesh{n}": jax.sharding.Mesh(np.array([devices[k] for k in mesh]), ("x",))
            for n, mesh in enumerate(self.meshes)
        }

    def plain(self) -> Callable[..., Any]:
        return self.make(Plain)


def apart(count: int, size: int) -> list[range]:
    """Returns the devices of meshes that share none."""
    return [range(n * size, (n + 1) * size) for n in range(count)]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def layers(front: Any, stages: int) -> Callable[..., Any]:
    """Returns the loss of a chain of stages."""

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
                # One function for each: the front end counts calls.
                one = front.call(lambda params, x: jax.value_and_grad(loss)(params, x), call_counter=n)
                value = one(params, xs[n])
                total = value if total is None else jax.tree.map(jnp.add, total, value)
            return total[0], [w - 0.1 * g for w, g in zip(params, total[1], strict=True)]

        return step

    return make


def forwards(front: Any) -> Callable[..., Any]:
    """Returns microbatches through stages without a gradient, with the schedule of parallel pipelines."""
    loss = layers(front, 2)

    def f(params: Any, xs: Any) -> Any:
        return [front.call(lambda p, x: loss(p, x), call_counter=n)(params, x) for n, x in enumerate(xs)]

    return f


def keys_and_trees(front: Any) -> Callable[..., Any]:
    """Returns typed keys, numbers, and results that are unchanged arguments."""

    def f(state: Any, scale: Any, untouched: Any) -> Any:
        key, x = state["key"], state["x"]
        noise = front.named_computation(lambda k: jax.random.normal(k, (4, 4)), name="stage0")(key)
        y = front.named_computation(lambda x, n, s: x @ n * s, name="stage1")(x, noise, scale)
        return {"key": jax.random.split(key)[0], "y": (y, None, y)}, untouched

    return f


def transformed(front: Any) -> Callable[..., Any]:
    """Returns `jax.checkpoint`, a scan, and a gradient that is differentiated in turn, on two stages."""

    def block(w: Any, x: Any) -> Any:
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, length=3)[0]

    first = front.named_computation(jax.checkpoint(block), name="stage0")
    last = front.named_computation(lambda w, x: jnp.sum(jnp.sin(x @ w)), name="stage1")
    penalty = front.named_computation(lambda v, g: v + jnp.sum(g**2), name="stage1")

    def penalized(params: Any, x: Any) -> Any:
        def loss(x: Any) -> Any:
            return last(params[1], first(params[0], x))

        value, gradient = jax.value_and_grad(loss)(x)
        return penalty(value, gradient)

    return lambda params, x: jax.value_and_grad(penalized)(params, x)


def with_callbacks(front: Any) -> Callable[..., Any]:
    """Returns callbacks with and without results, on slices of two devices."""

    def host(x: Any) -> Any:
        CALLS.append(float(np.sum(x)))
        return np.asarray(x) + 1

    def first(x: Any) -> Any:
        jax.debug.callback(lambda total: CALLS.append(float(total)), jnp.sum(x))
        return x * 2

    def second(x: Any) -> Any:
        return jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x) * 3

    return lambda x: front.named_computation(second, name="stage1")(
        front.named_computation(first, name="stage0")(x)
    )


CALLS: list[float] = []
"""Arguments of the callbacks of `with_callbacks`."""


def sharded_map(front: Any) -> Callable[..., Any]:
    """Returns a `shard_map` inside of a stage, over the axis of its mesh."""

    def summed(x: Any) -> Any:
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
        body = jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
        return body(x)

    return lambda x: front.named_computation(lambda y: y * 2, name="stage1")(
        front.named_computation(summed, name="stage0")(x)
    )


def stages(count: int) -> dict[str, int]:
    return {f"stage{n}": n for n in range(count)}


PROGRAMS: dict[str, MpmdProgram] = {
    "two_stages": MpmdProgram(
        two_stages,
        ({"w": [normal(4, 4), normal(4, 3)]}, normal(8, 4), normal(7)),
        apart(2, 1),
        stages(2),
        donate=(0, 2),
    ),
    "sharded": MpmdProgram(
        pipeline(2, 2),
        ([normal(4, 8), normal(8, 4)], normal(2, 8, 4)),
        apart(2, 4),
        stages(2),
        donate=(0,),
        specs={0: P(None, "x"), 1: P("x"), 2: P(None, "x")},
        schedule="ONE_FWD_ONE_BWD",
    ),
    "keys_and_trees": MpmdProgram(
        keys_and_trees,
        ({"key": jax.random.key(7), "x": normal(3, 4)}, np.float32(0.5), normal(2)),
        apart(2, 2),
        stages(2),
        forms=("call",),
    ),
    # The second mesh shares a device with the first one, and has its devices in another order.
    "overlapping": MpmdProgram(
        two_stages,
        ({"w": [normal(4, 4), normal(4, 2)]}, normal(8, 4), normal(7)),
        [(0, 1), (2, 1)],
        stages(2),
        specs={0: P("x"), 2: P("x")},
        forms=("fragment",),
    ),
    "transformed": MpmdProgram(
        transformed,
        ([normal(4, 4), normal(4, 4)], normal(2, 4)),
        apart(2, 1),
        stages(2),
        staged=False,
        forms=("call",),
    ),
    "with_callbacks": MpmdProgram(with_callbacks, (normal(4, 4),), apart(2, 4), stages(2), specs={0: P("x")}),
    "sharded_map": MpmdProgram(sharded_map, (normal(4, 4),), apart(2, 2), stages(2)),
}

SCHEDULES = (
    "ONE_FWD_ONE_BWD",
    "GPIPE",
    "GPIPE_BUT_1F1B_FOR_LAST_MESH",
    "ZERO_BUBBLE_H1",
    "ZERO_BUBBLE_H2_ZERO_TX_LATENCY",
    "ZERO_BUBBLE_H2_HALF_TX_LATENCY",
    "ZERO_BUBBLE_H2_FULL_TX_LATENCY",
    "PARALLEL_PIPELINES_WITH_WRAP_AROUND",
    "CIRCULAR",
    "CIRCULAR_WITH_REVERSED_BACKWARD",
)
"""Names of the front end's operations."""

PROGRAMS.update(
    (
        schedule.lower(),
        MpmdProgram(
            forwards if schedule.startswith("PARALLEL") else pipeline(2, 3),
            ([normal(2, 2), normal(2, 2)], [*normal(3, 2, 2)]),
            apart(2, 1),
            stages(2),
            schedule=schedule,
            forms=("fragment",) if schedule == "ZERO_BUBBLE_H1" else ("call",),
        ),
    )
    for schedule in SCHEDULES
)

"""Losses with gradients in them, pipelined over two slices under `pw.accumulate`: the values of `jax.jit`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check import assert_close
from models import gradients_of

import pathways as pw

MICROBATCHES = 4

type Model = Callable[[Any, jax.Array], jax.Array]
type Loss = Callable[[Any, Any], jax.Array]


def front(params: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ params["w"] + params["b"])


def back(params: Any, h: jax.Array) -> jax.Array:
    return jnp.tanh(h @ params["w"]) @ params["v"]


def wgan_gp(model: Model) -> Loss:
    """Returns the loss of the critic of a WGAN with gradient penalty (Gulrajani et al., 2017)."""

    def loss(params: Any, batch: Any) -> jax.Array:
        real, fake, share = batch
        mixed = share * real + (1 - share) * fake
        slopes = jax.grad(lambda x: model(params, x).sum())(mixed)
        penalty = (jnp.sqrt((slopes**2).sum(axis=1) + 1e-12) - 1) ** 2
        return model(params, fake).mean() - model(params, real).mean() + 10 * penalty.mean()

    return loss


def maml(model: Model) -> Loss:
    """Returns a loss after one step of descent on other examples of a task (Finn et al., 2017)."""

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y, _ = batch

        def error(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
            return jnp.mean((model(params, x) - y[:, :1]) ** 2)

        gradients = jax.grad(error)(params, x[:2], y[:2])
        adapted = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
        return error(adapted, x[2:], y[2:])

    return loss


def balanced(model: Model) -> Loss:
    """Returns a loss weighted by the gradient of another, as a constant (Wang et al., 2021)."""

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y, _ = batch

        def error(params: Any, x: jax.Array) -> jax.Array:
            return jnp.mean((model(params, x) - y[:, :1]) ** 2)

        slopes = jax.tree.leaves(jax.grad(error)(jax.lax.stop_gradient(params), x))
        return error(params, y) / sum(jnp.abs(slope).mean() for slope in slopes)

    return loss


def pinn(model: Model) -> Loss:
    """Returns the residual of Burgers' equation, u_t + u u_x = nu u_xx, and the values at some points."""

    def loss(params: Any, batch: Any) -> jax.Array:
        points, values, _ = batch

        def u(point: jax.Array) -> jax.Array:
            return model(params, point[None])[0, 0]

        def residual(point: jax.Array) -> jax.Array:
            slope = jax.grad(u)(point)
            curvature = jax.grad(lambda p: jax.grad(u)(p)[0])(point)[0]
            return slope[1] + u(point) * slope[0] - 0.1 * curvature

        known = jnp.mean((model(params, points) - values[:, :1]) ** 2)
        return known + jnp.mean(jax.vmap(residual)(points) ** 2)

    return loss


def checkpointed(model: Model) -> Loss:
    return jax.checkpoint(wgan_gp(model))


def program_of(make_loss: Callable[[Model], Loss], schedule: str, stages: bool = False) -> Any:
    """Returns a step with both halves of the model on a slice each."""
    devices = pw.make_virtual_device_set()
    s0, s1 = (devices.add_slice((1,), ("x",)) for _ in range(2))
    f = pw.jit(front, devices=s0, stage=0 if stages else None)
    g = pw.jit(back, devices=s1, stage=1 if stages else None)
    step = gradients_of(make_loss(lambda params, x: g(params[1], f(params[0], x))), MICROBATCHES)
    return pw.program(step, schedule=schedule)


def arguments() -> tuple[Any, Any]:
    random = np.random.default_rng(0)

    def array(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32) * 0.5

    params = {"w": array(2, 6), "b": array(6)}, {"w": array(6, 6), "v": array(6, 1)}
    rows = 3 * MICROBATCHES
    return params, (array(rows, 2), array(rows, 2), random.uniform(size=(rows, 1)).astype(np.float32))


@functools.cache
def expected(make_loss: Callable[[Model], Loss]) -> Any:
    loss = make_loss(lambda params, x: back(params[1], front(params[0], x)))
    return jax.jit(gradients_of(loss, MICROBATCHES))(*arguments())


def stages_of(compiled: Any) -> list[tuple[int, str]]:
    """Returns the stages with the kind of their forward, in the order of their slices."""
    calls = [origin for event in compiled.timeline().launches for origin in event.origins]
    return sorted({(call.stage, call.kind) for call in calls if call.kind in ("fwd", "grad")})


@pytest.mark.parametrize(
    ("make_loss", "schedule"),
    [
        (wgan_gp, "gpipe"),
        (wgan_gp, "eager(max-live=2)"),
        (wgan_gp, "zb-v"),
        (wgan_gp, "search(iterations=20, max-live=3)"),
        (maml, "1f1b(max-live=2)"),
        (pinn, "1f1b(times=flops)"),
        (balanced, "1f1b"),
        (checkpointed, "1f1b"),
    ],
)
def test_second_order_steps_agree_with_jit(make_loss: Callable[[Model], Loss], schedule: str):
    params, batch = arguments()
    got = program_of(make_loss, schedule)(params, batch)
    assert_close(got, expected(make_loss))


def test_second_order_gradients_are_stages_in_v():
    """s0, s1, s1, s0: both policies of a V, and those that accept any distribution, have calls to order."""
    compiled = program_of(wgan_gp, "1f1b").lower(*arguments()).compile()
    assert stages_of(compiled) == [(0, "fwd"), (1, "fwd"), (2, "grad"), (3, "grad")]
    timeline = compiled.timeline()
    in_turn = program_of(wgan_gp, "program").lower(*arguments()).compile().timeline()
    assert timeline.step_time < 0.8 * in_turn.step_time


def test_second_order_continues_stages_of_user():
    """The model is called again after the step of descent: its calls cannot have the same numbers again."""
    step = program_of(maml, "1f1b", stages=True)
    compiled = step.lower(*arguments()).compile()
    kinds = ["fwd", "fwd", "grad", "grad", "fwd", "fwd"]
    assert stages_of(compiled) == [*enumerate(kinds)]
    assert_close(compiled(*arguments()), expected(maml))


def test_second_order_refused_by_policies_for_other_pipelines():
    for policy, needs in (
        ("zb-h1(times=flops)", "slices to which no microbatch comes back"),
        ("looped-bfs", "round-robin order"),
    ):
        with pytest.raises(pw.ProgramError, match=f"cannot be scheduled by '.*', which needs .*{needs}"):
            program_of(wgan_gp, policy).lower(*arguments())

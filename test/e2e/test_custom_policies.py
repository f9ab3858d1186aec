"""Programs with a policy of their own: values, errors, and the keys of caches and bundles."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check import assert_close
from models import gradients_of, squared_error

import pathways as pw
from pathways.extending import Action, Order, Pipeline
from pathways.passes.schedule.policies.registry import POLICIES

ARGUMENTS = [jnp.eye(4)] * 2, (jnp.ones((8, 4)), jnp.zeros((8, 4)))


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


@functools.cache
def stages_on_slices() -> list[Any]:
    """Returns the stages of all programs here, which differ in their schedules alone."""
    devices = pw.make_virtual_device_set()
    return [pw.jit(layer, devices=devices.add_slice((1,), ("x",))) for _ in range(2)]


def program_of(schedule: Any, loop: Any = None) -> Any:
    stages = stages_on_slices()

    def step(params: Any, batch: Any) -> Any:
        return pw.accumulate(jax.value_and_grad(squared_error(stages)), 4, schedule=loop)(params, batch)

    return pw.program(step, schedule=schedule)


def as_1f1b(pipeline: Pipeline) -> Order:
    return POLICIES["1f1b"](pipeline)


def same_as_1f1b(pipeline: Pipeline) -> Order:
    return POLICIES["1f1b"](pipeline)


class Halved:
    """Policy that is a class, with halves of backwards."""

    halves = True

    def __call__(self, pipeline: Pipeline) -> Order:
        return POLICIES["zb-h1"](pipeline)


@pytest.mark.parametrize(("custom", "policy"), [(as_1f1b, "1f1b"), (Halved, "zb-h1"), (Halved(), "zb-h1")])
def test_custom_policy_orders_as_its_twin_and_values_agree(custom: Any, policy: str):
    ours, theirs = program_of(custom).lower(*ARGUMENTS), program_of(policy).lower(*ARGUMENTS)
    assert "schedule custom" in ours.as_text(pretty=True)
    assert ours.as_text().replace('"custom"', f'"{policy}"') == theirs.as_text()
    assert_close(ours.compile()(*ARGUMENTS), jax.jit(gradients_of(squared_error([layer] * 2), 4))(*ARGUMENTS))


def test_custom_policy_of_a_loop_overrides_the_program():
    assert program_of("gpipe", as_1f1b).lower(*ARGUMENTS).as_text() == (
        program_of(as_1f1b).lower(*ARGUMENTS).as_text()
    )


@pytest.mark.process
def test_bundles_of_policies_with_one_order_are_equal(tmp_path: Path):
    paths = [tmp_path / f"{policy.__name__}.pwb" for policy in (as_1f1b, same_as_1f1b)]
    for path, policy in zip(paths, (as_1f1b, same_as_1f1b), strict=True):
        program_of(policy).lower(*ARGUMENTS).save(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    value, _ = pw.load(paths[0])(*ARGUMENTS)
    np.testing.assert_allclose(value, program_of("1f1b")(*ARGUMENTS)[0])


def test_wrong_order_is_one_sentence_with_the_place():
    def backwards_first(pipeline: Pipeline) -> Order:
        return [[Action(stage, kind, n) for n in range(4) for kind in "BF"] for stage in range(2)]

    message = (
        r"program 'step': pw.accumulate of .* cannot be scheduled by '.*:.*backwards_first', which returns a "
        r"wrong order: 0B0 \(row 1, column 1\) comes before 0F0 \(row 1, column 2\), which it needs \(.*\)"
    )
    with pytest.raises(pw.ProgramError, match=message):
        program_of(backwards_first)(*ARGUMENTS)


def test_schedule_that_is_no_policy_is_a_type_error():
    with pytest.raises(TypeError, match="schedule must be a policy or the path of a file, got int"):
        program_of(3)


@pytest.mark.parametrize("policy", ["1f1b", "zb-h1(max-live=2)"])
def test_compiled_program_says_its_schedule(policy: str):
    compiled = program_of(policy).lower(*ARGUMENTS).compile()
    assert f": schedule {policy}, slices " in repr(compiled)

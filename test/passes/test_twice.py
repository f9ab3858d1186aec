"""Passes that run twice change no value: each alone and with those that follow it, right after or later.

A pass that leaves another form than it accepts is refused the second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check import assert_close
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from models import carrying_step, layer, place_on

import pathways as pw
from pathways.compiler.from_mlir import lower_module
from pathways.dialect import form_of, make_context
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.dialect.verification.forms import working_modules
from pathways.passes.manager.base import Pass, PassFailure
from pathways.passes.manager.driver import Diagnostics, run_passes
from pathways.passes.pipeline import Options, phases

pytestmark = pytest.mark.slow

WIDTH = 8
WEIGHTS = [np.random.default_rng(n).normal(0, 0.5, (WIDTH, WIDTH)).astype(np.float32) for n in range(2)]
X = np.random.default_rng(2).normal(size=(8, WIDTH)).astype(np.float32)

Case = tuple[Callable[..., Any], tuple[Any, ...]]


def slices(shapes: Sequence[tuple[int, ...]] = ((1,), (1,)), replicas: int = 1) -> list[Any]:
    devices = pw.make_virtual_device_set(replicas=replicas)
    return [devices.add_slice(shape, ("x",)) for shape in shapes]


def tied_with_average() -> Case:
    """Replicas whose gradient joins two slices, and whose microbatches hand on a running average."""
    first, last = place_on(slices(replicas=2))

    def loss(w: Any, mean: Any, x: Any) -> Any:
        h = last(w, first(w, x))
        return jnp.mean(h**2), 0.9 * mean + 0.1 * h.mean(0)

    return carrying_step(loss, 4), (WEIGHTS[0], np.zeros(WIDTH, np.float32), X)


def scanned_stages_on_unequal_meshes() -> Case:
    """Stages that scan over layers, on meshes of two devices and one, under a schedule with halves."""

    def stage(w: Any, x: Any) -> Any:
        return jax.lax.scan(lambda x, w: (layer(w, x), None), x, w)[0]

    here, there = slices([(2,), (1,)])
    first = pw.jit(stage, devices=here, in_shardings=(None, P("x")))
    last = pw.jit(stage, devices=there)
    table = np.linspace(-1, 1, WIDTH * WIDTH, dtype=np.float32).reshape(WIDTH, WIDTH)

    def step(params: Any, x: Any) -> Any:
        def loss(params: Any, x: Any) -> Any:
            return jnp.mean((last(params[1], first(params[0], x)) @ table) ** 2)

        value, grads = pw.accumulate(jax.value_and_grad(loss), 4)(params, x)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    return step, ([np.stack(WEIGHTS), np.stack(WEIGHTS)], X)


def branches() -> Case:
    first, last = place_on(slices())

    def step(w: Any, x: Any) -> Any:
        h = last(w[1], first(w[0], x))
        return jax.lax.cond(h.sum() > 0, lambda h: first(w[1], jnp.sin(h)), lambda h: last(w[0], h) * 2, h)

    return step, (WEIGHTS, X)


def loop_with_unknown_end() -> Case:
    first, last = place_on(slices())

    def step(w: Any, x: Any) -> Any:
        def body(state: Any) -> Any:
            n, h = state
            return n + 1, last(w[1], first(w[0], h)) + x

        return jax.lax.while_loop(lambda s: (s[0] < 5) & (jnp.abs(s[1]).sum() > 0), body, (0, x))

    return step, (WEIGHTS, X)


CASES = {
    "replicas": (tied_with_average, Options(policy="1f1b")),
    "zero1": (tied_with_average, Options(zero1=True)),
    "halves": (scanned_stages_on_unequal_meshes, Options(policy="zb-h1")),
    "fused": (scanned_stages_on_unequal_meshes, Options(fuse=True)),
    "branches": (branches, Options()),
    "chunks": (loop_with_unknown_end, Options(chunk=2)),
}


def is_accepted(module: ir.Module, passes: Sequence[Pass]) -> bool:
    """Runs passes over a module; returns whether none was refused."""
    claims = {form_of(one) for one in working_modules(module)} - {None}
    if not claims <= {form.name for form in passes[0].input_forms}:
        return False
    refusal = ""
    with Diagnostics(module.context):
        try:
            run_passes(module, passes)
        except PassFailure as refused:
            refusal = str(refused)
    assert not refusal or "expects the form" in refusal or "has a memory plan" in refusal
    return not refusal


def repeats(passes: Sequence[Pass]) -> Iterator[tuple[int, Sequence[Pass]]]:
    """Yields after how many passes which of them run again: each alone, and with those that follow it."""
    for end in range(1, len(passes) + 1):
        for again in range(end):
            yield end, passes[again : again + 1]
            if again + 1 < end:
                yield end, passes[again:end]


@pytest.mark.parametrize("name", CASES)
def test_twice_changes_no_value(name: str) -> None:
    make, options = CASES[name]
    function, arguments = make()
    text = pw.program(function, chunk=options.chunk).lower(*arguments).as_text("stablehlo")
    module = ir.Module.parse(text, make_context())
    passes = [one for phase in phases(options) for one in phase.passes]
    states = []
    for one in passes:
        assert is_accepted(module, [one])
        states.append(bytecode_of(module))
    once, texts = values(module, options, arguments), {str(module)}
    for end, again in repeats(passes):
        module = ir.Module.parse(states[end - 1], module.context)
        before = str(module)
        if not is_accepted(module, again) or str(module) == before:
            continue
        if is_accepted(module, passes[end:]) and str(module) not in texts:
            texts.add(str(module))
            assert_close(values(module, options, arguments), once, 1e-5)


def values(module: ir.Module, options: Options, arguments: Any) -> list[Any]:
    """Returns the results of a scheduled program."""
    program = lower_module(module, "step", options).compile()
    return jax.tree.leaves(program(*jax.tree.leaves(arguments)))

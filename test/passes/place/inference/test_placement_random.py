"""Random programs over three slices compute what `jax.jit` computes, and their schedules are proved."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from proofs import assert_agrees, prove, three_slices

import pathways as pw
from examples import examples

# Small arrays may be mirrored; larger ones have one home, and the largest may be donated inside.
SHAPES = [(), (3,), (700,), (20_000,)]

UNARY: dict[str, Callable[[Any], Any]] = {
    "sin": jnp.sin,
    "tanh": jnp.tanh,
    "half": lambda x: x / 2,
    "mean": jnp.mean,
    "cumulative": lambda x: jnp.cumsum(jnp.atleast_1d(x)) / jnp.size(x),
    "identity": lambda x: x,
    "constant": lambda x: x * np.linspace(-1, 1, np.size(x), dtype=np.float32).reshape(np.shape(x)),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: (x + y) / 2,
    "multiply": jnp.multiply,
    "choose": lambda x, y: jnp.where(x > 0, x, y),
}


@dataclasses.dataclass(frozen=True)
class Op:
    """An operation on earlier values; `slice` is None between placed calls."""

    name: str
    operands: tuple[int, ...]
    slice: int | None


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A program: shapes of arguments, operations, and the values that it returns."""

    shapes: tuple[tuple[int, ...], ...]
    donated: tuple[int, ...]
    ops: tuple[Op, ...]
    results: tuple[int, ...]
    gradient: bool

    def build(self, place: Sequence[Callable[[Any], Any]]) -> Callable[..., Any]:
        """The program as a function; `place[n]` puts a function on slice n."""

        def run(*arguments: Any) -> tuple[Any, ...]:
            values = list(arguments)
            for op in self.ops:
                apply = _functions[op.name, len(op.operands)]
                function = apply if op.slice is None else place[op.slice](apply)
                values.append(function(*(values[n] for n in op.operands)))
            return tuple(values[n] for n in self.results)

        if not self.gradient:
            return run

        def total(arguments: tuple[Any, ...]) -> Any:
            results = run(*arguments)
            return sum(jnp.mean(r) for r in results), results

        return lambda *arguments: jax.value_and_grad(total, has_aux=True)(arguments)


def _combined(name: str) -> Callable[[Any, Any], Any]:
    def combine(x: Any, y: Any) -> Any:
        both = BINARY[name]
        return both(x, y) if () in (x.shape, y.shape) or x.shape == y.shape else both(x, jnp.mean(y))

    combine.__name__ = name
    return combine


_functions: dict[tuple[str, int], Callable[..., Any]] = {
    **{(name, 1): function for name, function in UNARY.items()},
    **{(name, 2): _combined(name) for name in BINARY},
}


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=4))
    ops: list[Op] = []
    for _ in range(draw(st.integers(1, 9))):
        name, arity = draw(st.sampled_from(sorted(_functions)))
        count = len(shapes) + len(ops)
        operands = tuple(draw(st.integers(0, count - 1)) for _ in range(arity))
        ops.append(Op(name, operands, draw(st.sampled_from([None, 0, 1, 2]))))
    if all(op.slice is None for op in ops):
        ops[-1] = dataclasses.replace(ops[-1], slice=0)
    count = len(shapes) + len(ops)
    results = [*draw(st.lists(st.integers(0, count - 1), max_size=3)), count - 1]
    donated = draw(st.sets(st.integers(0, len(shapes) - 1)))
    return Recipe(tuple(shapes), tuple(sorted(donated)), tuple(ops), tuple(results), draw(st.booleans()))


def _lives_on(argument: jax.Array, results: Any) -> bool:
    """Returns whether a result has the buffer of an argument."""
    if argument.is_deleted():
        return False
    own = argument.unsafe_buffer_pointer()
    return any(
        shard.data.unsafe_buffer_pointer() == own
        for leaf in jax.tree.leaves(results)
        for shard in leaf.addressable_shards
    )


@pytest.fixture(scope="module")
def slices() -> list[pw.VirtualSlice]:
    return three_slices()


@pytest.mark.filterwarnings("ignore:.*donated buffers:pathways.PathwaysWarning")
@settings(
    max_examples=examples(4),
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(recipe=recipes())
@example(recipe=Recipe(((),), (0,), (Op("add", (0, 0), 2),), (0, 1), False))
def test_placement_of_random_programs_agrees_with_jit(slices: list[pw.VirtualSlice], recipe: Recipe) -> None:
    place = [lambda f, s=s: pw.jit(f, devices=s) for s in slices]
    program = pw.program(recipe.build(place), donate_argnums=recipe.donated)
    rng = np.random.default_rng(0)
    given_ = [rng.normal(size=shape).astype(np.float32) for shape in recipe.shapes]
    wanted = jax.jit(recipe.build([jax.jit] * 3))(*given_)
    prove(program.lower(*given_).as_text())
    for _ in range(2):
        arguments = [jnp.array(value) for value in given_]
        got = program(*arguments)
        for n, argument in enumerate(arguments):
            # A donated argument may also live on as a result, or in one: on a device of a slice of several.
            assert argument.is_deleted() == (n in recipe.donated and not _lives_on(argument, got))
        assert_agrees(got, wanted)

"""A step that fails takes with it only the results that need it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_builder import PlanBuilder, Runner
from small_plans import add, double, increment, two_slices

from pathways.runtime.local.partial_calls import PartialFailure, PartialTarget
from pathways.runtime.xla import compile_cache

X = np.arange(4, dtype=np.float32)


class Fallible:
    """Executable whose chosen executions fail; all executables count theirs together."""

    failing: frozenset[int] = frozenset()
    executions = 0

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def execute_sharded(self, *arguments: Any) -> Any:
        number, Fallible.executions = Fallible.executions, Fallible.executions + 1
        if number in Fallible.failing:
            raise jax.errors.JaxRuntimeError(f"RESOURCE_EXHAUSTED: Out of memory in execution {number}.")
        return self.inner.execute_sharded(*arguments)


@pytest.fixture(scope="module", autouse=True)
def fallible() -> Iterator[None]:
    def load_all(*arguments: Any) -> list[compile_cache.Loaded]:
        found = compile_cache.load_all(*arguments)
        return [compile_cache.Loaded(Fallible(loaded.executable), copied=loaded) for loaded in found]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pathways.runtime.local.load.load_all", load_all)
        yield


def outputs_of(loaded: Any, arrays: list[Any], *failing: int) -> list[Any]:
    """Returns the results of a call: values, or for those that have failed the execution that did."""
    Fallible.failing, Fallible.executions = frozenset(failing), 0
    try:
        outputs = loaded.run(arrays)
    except PartialFailure as failure:
        outputs = failure.outputs
    return [str(o).split()[-1] if isinstance(o, Exception) else np.asarray(o) for o in outputs]


def test_results_that_need_a_failed_launch_have_its_error(plan_builder, runner):
    first, second = two_slices()
    build = plan_builder(first, second, name="step")
    x, y = build.argument((4,), first, donated=True), build.argument((4,), second)
    doubled = build.launch(double, first, x, donated=(0,))
    moved = build.transfer(doubled, second)
    results = build.launch(increment, second, y), build.launch(add, second, moved, y), doubled
    loaded = runner.load(build, *results, make_target=PartialTarget)
    arrays = runner.place(loaded, X, X)
    Fallible.failing, Fallible.executions = frozenset([0]), 0
    with pytest.raises(PartialFailure) as raised:
        loaded.run(arrays)
    incremented, *errors = raised.value.outputs
    np.testing.assert_array_equal(incremented, X + 1)
    assert errors == [raised.value.__cause__] * 2
    assert errors[0].__notes__[0] == f"in program step, step double on {first.name} on slice {first.name}"
    assert "live on slice" in errors[0].__notes__[1]


def test_steps_after_a_failed_one_are_named_by_their_errors(plan_builder, runner):
    first, second = two_slices()
    build = plan_builder(first, second, name="step")
    x, y = build.argument((4,), first), build.argument((4,), second)
    results = build.launch(double, first, x), build.launch(double, second, y)
    loaded = runner.load(build, *results, make_target=PartialTarget)
    arrays = runner.place(loaded, X, X)
    Fallible.failing, Fallible.executions = frozenset([0, 1]), 0
    with pytest.raises(PartialFailure) as raised:
        loaded.run(arrays)
    notes = [error.__notes__[0] for error in raised.value.outputs]
    assert notes == [f"in program step, step double on {s.name} on slice {s.name}" for s in (first, second)]


@settings(max_examples=60)
@given(data=st.data())
def test_any_steps_may_fail(data: st.DataObject) -> None:
    """All results of random programs are right that need no failed execution; transfers share calls."""
    slices = two_slices(data.draw(st.sampled_from([1, 2])))
    build = PlanBuilder(*slices)
    values: dict[int, Any] = {build.argument((4,), slice): X for slice in slices}
    places = dict(zip(values, slices, strict=True))
    failing = data.draw(st.frozensets(st.integers(0, 8), min_size=1))
    executions = 0
    alive = list(values)
    for _ in range(data.draw(st.integers(1, 12))):
        slot = data.draw(st.sampled_from(alive))
        kind = data.draw(st.sampled_from([double, increment, add, "transfer", "release"]))
        if kind == "release":
            if len(alive) > 1:
                build.release(slot)
                alive.remove(slot)
            continue
        if kind == "transfer":
            place = slices[1 - slices.index(places[slot])]
            new, value = build.transfer(slot, place), values[slot]
        else:
            place, operands = places[slot], [slot]
            if kind is add:
                operands.append(data.draw(st.sampled_from([s for s in alive if places[s] is place])))
            new, read = build.launch(kind, place, *operands), [values[s] for s in operands]
            error = next((v for v in read if isinstance(v, str)), None)
            value = error if error is not None else kind(*read)
            if error is None:
                value = f"{executions}." if executions in failing else value
                executions += 1
        values[new], places[new] = value, place
        alive.append(new)
    loaded = Runner().load(build, *alive, make_target=PartialTarget)
    got = outputs_of(loaded, Runner().place(loaded, X, X), *failing)
    for value, slot in zip(got, alive, strict=True):
        if isinstance(values[slot], str):
            assert value == values[slot]
        else:
            np.testing.assert_array_equal(value, values[slot])

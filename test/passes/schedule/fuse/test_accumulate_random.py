"""Random models over microbatches give what the scan gives, and their schedules are proved."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
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
from pathways.passes import pipeline
from pathways.passes.schedule.fuse.accumulate import Accumulate
from pathways.passes.schedule.fuse.compile_cost import LARGE
from pathways.passes.schedule.fuse.fuse_launches import FuseLaunches

Fun = Callable[..., Any]

# Without interleaved-1f1b, which takes only pipelines with equally many stages on each slice.
SCHEDULES = ["program", "gpipe", "1f1b", "eager"]


def affine(p: dict[str, jax.Array], *inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A layer of several inputs with two outputs; one has a row for each example alone."""
    h = jnp.tanh(jnp.concatenate(inputs, axis=1) @ p["w"] + p["b"])
    return h, h.sum(axis=1, keepdims=True)


@dataclasses.dataclass(frozen=True)
class Stage:
    """A placed call: its slice, its width, and which earlier values it reads besides the last one."""

    slice: int
    width: int
    also: tuple[int, ...]
    checkpoint: bool


@dataclasses.dataclass(frozen=True)
class Model:
    """A step over microbatches; values of the batch and of stages are numbered in their order."""

    count: int
    rows: int
    stages: tuple[Stage, ...]
    reduce: str
    returned: tuple[int, ...]
    gradient: bool
    tied: bool
    donated: bool
    schedule: str

    def build(self, place: Sequence[Callable[[Fun], Fun]]) -> Fun:
        """The step as a function; `place[n]` puts a function on slice n."""
        functions = []
        for stage in self.stages:
            function = place[stage.slice](affine)
            functions.append(jax.checkpoint(function) if stage.checkpoint else function)

        def outputs(params: Any, x: jax.Array) -> tuple[Any, Any]:
            values = [x, x[:, :1]]
            for function, stage, p in zip(functions, self.stages, params, strict=True):
                values += function(p, values[-2], *(values[n] for n in stage.also))
            loss = jnp.mean(values[-1] ** 2)
            if self.tied:
                loss += jnp.mean((values[-1] * params[0]["w"][0]) ** 2)
            return loss, tuple(values[n] for n in self.returned)

        if not self.gradient:
            return pw.accumulate(outputs, self.count, reduce=("mean", self.reduce))

        def step(params: Any, x: jax.Array) -> Any:
            gradients = jax.value_and_grad(outputs, has_aux=True)
            reduce = (("mean", self.reduce), "mean")
            (loss, aux), found = pw.accumulate(gradients, self.count, reduce=reduce)(params, x)
            return loss, aux, jax.tree.map(lambda p, g: p - 0.1 * g, params, found)

        return step

    def arguments(self) -> tuple[Any, Any]:
        """Parameters and a batch."""
        rng = np.random.default_rng(0)
        widths = [3, 1]
        params = []
        for stage in self.stages:
            read = widths[-2] + sum(widths[n] for n in stage.also)
            w = rng.normal(size=(read, stage.width)).astype(np.float32) / np.sqrt(read, dtype=np.float32)
            params.append({"w": w, "b": rng.normal(size=stage.width).astype(np.float32)})
            widths += [stage.width, 1]
        return params, rng.normal(size=(self.count * self.rows, 3)).astype(np.float32)


@st.composite
def models(draw: st.DrawFn) -> Model:
    stages: list[Stage] = []
    for n in range(draw(st.integers(1, 4))):
        # Of neighbours on one slice a schedule would ask to be one function.
        taken = stages[-1].slice if stages else None
        place = draw(st.sampled_from([s for s in range(3) if s != taken]))
        also = draw(st.sets(st.integers(0, 2 * n + 1), max_size=2))
        stages.append(Stage(place, draw(st.integers(1, 4)), tuple(sorted(also)), draw(st.booleans())))
    return Model(
        count=draw(st.integers(1, 5)),
        rows=draw(st.integers(1, 3)),
        stages=tuple(stages),
        reduce=draw(st.sampled_from(["mean", "sum", "concat"])),
        returned=tuple(draw(st.lists(st.integers(0, 2 * len(stages) + 1), max_size=3))),
        gradient=draw(st.booleans()),
        tied=draw(st.booleans()),
        donated=draw(st.booleans()),
        schedule=draw(st.sampled_from(SCHEDULES)),
    )


@pytest.fixture(scope="module")
def slices() -> list[pw.VirtualSlice]:
    return three_slices()


@pytest.fixture(scope="module", params=[1, LARGE], ids=["large", "small"])
def is_large(request: pytest.FixtureRequest) -> Iterator[None]:
    """Once as if all computations were large, once as they are: small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "Accumulate", functools.partial(Accumulate, large=request.param))
        patch.setattr(pipeline, "FuseLaunches", functools.partial(FuseLaunches, large=request.param))
        yield


@pytest.mark.filterwarnings("ignore:.*donated buffers:pathways.PathwaysWarning")
@pytest.mark.usefixtures("is_large")
@settings(
    max_examples=examples(2),
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(model=models())
@example(
    model=Model(
        count=3,
        rows=2,
        stages=(Stage(0, 3, (), False), Stage(2, 2, (0,), True), Stage(1, 4, (1, 3), False)),
        reduce="concat",
        returned=(1, 4),
        gradient=True,
        tied=True,
        donated=True,
        schedule="1f1b",
    )
)
@example(
    model=Model(
        count=4,
        rows=1,
        stages=(Stage(1, 2, (1,), False), Stage(2, 3, (), True)),
        reduce="sum",
        returned=(2,),
        gradient=False,
        tied=True,
        donated=False,
        schedule="eager",
    )
)
def test_accumulate_of_random_models_agrees_with_the_scan(
    slices: list[pw.VirtualSlice], model: Model
) -> None:
    place = [lambda f, s=s: pw.jit(f, devices=s) for s in slices]
    donated = (0,) if model.donated else ()
    program = pw.program(model.build(place), schedule=model.schedule, donate_argnums=donated)
    params, batch = model.arguments()
    prove(program.lower(params, batch).as_text())
    wanted = jax.jit(model.build([jax.jit] * 3))(params, batch)
    got = program(jax.tree.map(jnp.array, params), batch)
    assert_agrees(got, wanted)

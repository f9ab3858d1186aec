"""Cost of a step of pipelined training beside the same by hand, one `jax.jit` or one SPMD program: ratios.

  python bench/pipeline.py [--json PATH] [--rounds N] [--only TEXT]

The model is a stack of `tanh(x @ w)`, one on each slice, with its loss, gradients and SGD over microbatches.
Both sides of a case run in turn, in random order, from the same weights, and give the same numbers. The last
line is what it takes to compile a long pipeline.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _ratios import Case, run
from jax.sharding import Mesh, PartitionSpec, SingleDeviceSharding
from jaxlib.mlir import ir

import pathways
from pathways.dialect import make_context
from pathways.passes.manager.driver import run_passes
from pathways.passes.pipeline import Options, phases
from pathways.runtime.local.devices import bind, connect, devices_of, release
from pathways.runtime.resources.virtual import make_virtual_device_set
from pathways.runtime.xla import pjrt

RATE = 0.1
DEVICES = 4

Arrays = list[jax.Array]
Batch = tuple[jax.Array, jax.Array]
Step = Callable[[Any, Batch], tuple[jax.Array, Any]]
"""Function of the weights, which it consumes, and a batch, to the loss and the new weights."""


@dataclasses.dataclass(frozen=True)
class Size:
    """Pipeline of `stages` layers of width `width`, and `microbatches` of `rows` rows each."""

    stages: int
    microbatches: int
    width: int
    rows: int = 4

    def __str__(self) -> str:
        return f"S={self.stages} M={self.microbatches}, {self.rows} rows of {self.width}"

    def weights(self) -> list[np.ndarray]:
        """Returns the initial weights of all sides."""
        random = np.random.default_rng(0)
        shape = (self.stages, self.width, self.width)
        return list((random.standard_normal(shape) / self.width**0.5).astype(np.float32))

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns inputs and targets."""
        random = np.random.default_rng(1)
        shape = (2, self.microbatches * self.rows, self.width)
        inputs, targets = random.standard_normal(shape).astype(np.float32)
        return inputs, targets


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    """Runs one stage."""
    return jnp.tanh(x @ w)


def loss_of_layer(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """Runs the last stage, and returns the loss."""
    return jnp.mean((layer(w, x) - y) ** 2)


def step_of(layers: Sequence[Callable[..., jax.Array]], microbatches: int) -> Step:
    """Returns a training step over these layers; the last one computes the loss."""

    def loss(weights: Arrays, batch: Batch) -> jax.Array:
        x, y = batch
        for w, fun in zip(weights[:-1], layers[:-1], strict=True):
            x = fun(w, x)
        return layers[-1](weights[-1], x, y)

    def step(weights: Arrays, batch: Batch) -> tuple[jax.Array, Arrays]:
        value, grads = pathways.accumulate(jax.value_and_grad(loss), microbatches)(weights, batch)
        return value, [w - RATE * grad for w, grad in zip(weights, grads, strict=True)]

    return step


def one_program(size: Size, device: jax.Device) -> Training:
    """Returns the whole step as one `jax.jit`, a `lax.scan` over the microbatches."""
    layers = [layer] * (size.stages - 1) + [loss_of_layer]
    step = jax.jit(step_of(layers, size.microbatches), donate_argnums=0)
    return Training(step, size, [device] * size.stages)


def ours(size: Size, schedule: str = "1f1b") -> tuple[Training, list[jax.Device]]:
    """Returns the pipeline as a program, and the devices of its slices."""
    virtual = make_virtual_device_set()
    slices = [virtual.add_slice(1, "x") for _ in range(size.stages)]
    layers = [pathways.jit(layer, devices=slice) for slice in slices[:-1]]
    layers.append(pathways.jit(loss_of_layer, devices=slices[-1]))
    step = pathways.program(step_of(layers, size.microbatches), schedule=schedule, donate_argnums=0)
    bindings = bind(slices, "pipeline")
    devices = [devices_of(bindings[slice])[0] for slice in slices]
    for slice in slices:
        release(slice)
    return Training(step, size, devices), devices


class Training:
    """Side of a case: each call is a step from the weights of the last one."""

    def __init__(self, step: Step, size: Size, devices: Sequence[jax.Device]) -> None:
        inputs, targets = size.batch()
        self.step = step
        self.weights: Any = [jax.device_put(w, d) for w, d in zip(size.weights(), devices, strict=True)]
        self.batch = jax.device_put(inputs, devices[0]), jax.device_put(targets, devices[-1])

    def __call__(self) -> tuple[jax.Array, Any]:
        loss, self.weights = self.step(self.weights, self.batch)
        return loss, self.weights


Action = tuple[int, bool, int]
"""Stage, whether it goes forward, and microbatch; the last stage does both ways in one action."""


def one_forward_one_backward(stages: int, microbatches: int) -> list[Action]:
    """Returns the actions of all stages, by the time at which they run if all take as long."""
    rows: list[list[Action]] = []
    for stage in range(stages - 1):
        ahead = min(stages - 1 - stage, microbatches)
        row = [(stage, True, m) for m in range(ahead)]
        for m in range(microbatches):
            row += [(stage, True, m + ahead)] if m + ahead < microbatches else []
            row += [(stage, False, m)]
        rows.append(row)
    rows.append([(stages - 1, True, m) for m in range(microbatches)])

    def needed(action: Action) -> Action | None:
        stage, forward, m = action
        if forward:
            return (stage - 1, True, m) if stage else None
        return stage + 1, stage + 2 == stages, m

    done: dict[Action | None, None] = {None: None}
    while any(rows):
        ready = [row.pop(0) for row in rows if row and needed(row[0]) in done]
        done.update(dict.fromkeys(ready))
    return [action for action in done if action is not None]


class ByHand:
    """Pipeline as one would write it over XLA's executables: launches and copies, and nothing else.

    Each stage has a forward, which saves its result, and a backward, which adds to sums that are donated;
    the last stage has both in one computation. The last launch of a stage also does the update.
    """

    def __init__(self, size: Size, devices: Sequence[jax.Device]) -> None:
        self.size = size
        self.shardings = [SingleDeviceSharding(device) for device in devices]
        self.to = [
            ([pjrt.device_list([device])], [sharding], [pjrt.ALWAYS_COPY])
            for device, sharding in zip(devices, self.shardings, strict=True)
        ]
        self.numbers = [
            [jax.device_put(np.int32(m), sharding) for m in range(size.microbatches)]
            for sharding in self.shardings
        ]
        middle = {min(m, 1): m for m in range(size.microbatches - 1)}
        self.kinds = [min(m, 1) for m in range(size.microbatches - 1)] + [2]
        microbatches = [middle[0], middle[1], size.microbatches - 1]
        stages = range(size.stages)
        self.forwards = [self.forward(stage) for stage in stages[:-1]]
        self.backwards = [[self.backward(stage, m) for m in microbatches] for stage in stages]
        self.order = one_forward_one_backward(size.stages, size.microbatches)

    def block(self, given: Arrays) -> jax.Array:
        """Returns a microbatch: from another stage, or cut from the batch by its number."""
        if len(given) == 1:
            return given[0]
        return jax.lax.dynamic_slice_in_dim(given[0], given[1] * self.size.rows, self.size.rows)

    def forward(self, stage: int) -> tuple[Any, Any]:
        """Returns the executable of a forward, and the handlers that wrap its results."""
        return self.compile(stage, lambda w, given: [layer(w, self.block(given))], self.given(stage))

    def backward(self, stage: int, m: int) -> tuple[Any, Any]:
        """Returns the same for the backward of microbatch `m`, which starts the sums, adds to them, or ends
        them."""
        last, final = self.size.stages - 1, m == self.size.microbatches - 1

        def finish(w: jax.Array, terms: Arrays, sums: Arrays) -> Arrays:
            *loss, grad = [total + term for total, term in zip(sums, terms, strict=True)] if m else terms
            if not final:
                return [*loss, grad]
            return [*(value / (m + 1) for value in loss), w - RATE * (grad / (m + 1))]

        def inner(w: jax.Array, given: Arrays, sums: Arrays, h: jax.Array, g: jax.Array) -> Arrays:
            g = g * (1 - h * h)
            return finish(w, [self.block(given).T @ g], sums) + ([g @ w.T] if stage else [])

        def outer(w: jax.Array, given: Arrays, sums: Arrays, targets: Arrays) -> Arrays:
            both = jax.value_and_grad(loss_of_layer, argnums=(0, 1))
            value, (dw, dx) = both(w, self.block(given), self.block(targets))
            return [*finish(w, [value, dw], sums), dx]

        w, block, batch, scalar = self.types()
        sums = ([scalar, w] if stage == last else [w]) if m else []
        operands = [batch] if stage == last else [block, block]
        donated = (0,) if final else (2,)
        fun = outer if stage == last else inner
        return self.compile(stage, fun, self.given(stage), sums, *operands, donated=donated)

    def types(self) -> tuple[Any, Any, Any, Any]:
        """Returns the types of weights, microbatches, the batch with the number of one, and the loss."""
        size, f32 = self.size, np.float32
        batch = jax.ShapeDtypeStruct((size.microbatches * size.rows, size.width), f32)
        return (
            jax.ShapeDtypeStruct((size.width, size.width), f32),
            jax.ShapeDtypeStruct((size.rows, size.width), f32),
            [batch, jax.ShapeDtypeStruct((), np.int32)],
            jax.ShapeDtypeStruct((), f32),
        )

    def given(self, stage: int) -> Any:
        """Returns the types of a stage's inputs."""
        _, block, batch, _ = self.types()
        return [block] if stage else batch

    def compile(
        self, stage: int, fun: Callable[..., Any], *more: Any, donated: Sequence[int] = ()
    ) -> tuple[Any, Any]:
        """Returns the executable of a function of weights and more operands on a stage, and handlers of its
        results."""
        operands = (self.types()[0], *more)
        sharding = self.shardings[stage]
        jitted = jax.jit(
            fun,
            in_shardings=sharding,
            out_shardings=sharding,
            donate_argnums=donated,
            # All computations of a kind then take the same operands.
            keep_unused=True,
        )
        executable = jitted.lower(*operands).compile().runtime_executable()
        results = [jax.core.ShapedArray(r.shape, r.dtype) for r in jax.eval_shape(fun, *operands)]
        return executable.execute_sharded, [pjrt.result_handler(aval, sharding, "") for aval in results]

    def __call__(self, weights: Arrays, batch: Batch) -> tuple[jax.Array, Arrays]:
        copy, to, kinds, last = pjrt.copy_arrays, self.to, self.kinds, self.size.stages - 1
        inputs, targets = batch
        given = {(0, m): [inputs, number] for m, number in enumerate(self.numbers[0])}
        numbers = self.numbers[last]
        saved: dict[tuple[int, int], Arrays] = {}
        sums: list[Arrays] = [[] for _ in weights]
        for stage, forward, m in self.order:
            if forward and stage != last:
                execute, handlers = self.forwards[stage]
                h = execute([weights[stage], *given[stage, m]]).consume_with_handlers(handlers)
                saved[stage, m] = h
                given[stage + 1, m] = copy(h, *to[stage + 1])
                continue
            execute, handlers = self.backwards[stage][kinds[m]]
            operands = [targets, numbers[m]] if stage == last else saved.pop((stage, m))
            results = execute(
                [weights[stage], *given.pop((stage, m)), *sums[stage], *operands]
            ).consume_with_handlers(handlers)
            if stage:
                saved[stage - 1, m] += copy([results.pop()], *to[stage - 1])
            sums[stage] = results
        return sums[last][0], [total[-1] for total in sums]


def spmd(size: Size, devices: Sequence[jax.Device]) -> Training:
    """Returns the same model as one program over all devices: GPipe by `shard_map` and `ppermute`."""
    stages, count = size.stages, size.microbatches
    mesh = Mesh(np.array(devices), ("stage",))
    P = PartitionSpec
    forth = [(stage, stage + 1) for stage in range(stages - 1)]

    def loss(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        stage = jax.lax.axis_index("stage")

        def tick(arrived: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
            block = jax.lax.dynamic_index_in_dim(x, jnp.minimum(t, count - 1), keepdims=False)
            h = layer(weights[0], jnp.where(stage == 0, block, arrived))
            return jax.lax.ppermute(h, "stage", forth), h

        nothing = jax.lax.pcast(jnp.zeros_like(x[0]), "stage", to="varying")
        _, results = jax.lax.scan(tick, nothing, jnp.arange(count + stages - 1))
        value = jnp.mean((results[stages - 1 :] - y) ** 2)
        return jax.lax.psum(jnp.where(stage == stages - 1, value, 0), "stage")

    sharded = jax.shard_map(loss, mesh=mesh, in_specs=(P("stage"), P(), P()), out_specs=P())

    def step(weights: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
        blocks = [array.reshape(count, size.rows, size.width) for array in batch]
        value, grads = jax.value_and_grad(sharded)(weights, *blocks)
        return value, weights - RATE * grads

    training = Training(jax.jit(step, donate_argnums=0), size, devices)
    training.weights = jax.device_put(np.stack(size.weights()), jax.NamedSharding(mesh, P("stage")))
    everywhere = jax.NamedSharding(mesh, P())
    training.batch = tuple(jax.device_put(array, everywhere) for array in size.batch())
    return training


def check(*sides: Training) -> None:
    """Checks that all sides give the same loss and weights."""
    (value, weights), *their_results = [side() for side in sides]
    for their_value, their_weights in their_results:
        np.testing.assert_allclose(value, their_value, rtol=1e-5)
        for w, theirs in zip(weights, their_weights, strict=True):
            np.testing.assert_allclose(w, theirs, rtol=1e-4, atol=1e-5)


def cases() -> Iterator[Case]:
    """Yields all cases of the table."""
    overhead = [Size(stages, count, 8) for stages in (2, 4) for count in (8, 32)]
    for size in (*overhead, Size(4, 8, 512)):
        program, devices = ours(size)
        by_hand = Training(ByHand(size, devices), size, devices)
        jitted = one_program(size, devices[0])
        check(program, by_hand, jitted)
        yield Case(str(size), "by hand", 1.10, program, by_hand)
        yield Case(str(size), "one jax.jit, lax.scan", None, program, jitted)
    for schedule in ("1f1b", "gpipe"):
        program, devices = ours(size, schedule)
        whole = spmd(size, devices)
        check(program, whole)
        name = f"{size}, {schedule}"
        yield Case(name, "one SPMD program, gpipe", 1.0, program, whole, is_return_timed=False)
    size = Size(2, 8, 512, rows=256)
    program, _ = ours(size)
    with another_process(OneCore.start, size) as alone:

        def jitted() -> float:
            return alone.submit(OneCore.step).result()

        for _ in range(3):
            np.testing.assert_allclose(program()[0], jitted(), rtol=1e-4)
        yield Case(str(size), "jax.jit on one core", 1 / 1.4, program, jitted, is_return_timed=False)


def another_process(*initializer: Any) -> ProcessPoolExecutor:
    """Returns a new Python that waits for work."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer[0], initializer[1:])


class OneCore:
    """Runs of `one_program` in a process held to one core; no flag of XLA keeps all its threads to one."""

    training: Training

    @classmethod
    def start(cls, size: Size) -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        cls.training = one_program(size, jax.devices()[0])

    @classmethod
    def step(cls) -> float:
        """Runs a step and returns its loss when all of it is done."""
        loss, _ = jax.block_until_ready(cls.training())
        return float(loss)


def compile_seconds() -> tuple[float, float]:
    """Returns the time from the call of a long pipeline to code on its devices, and that of the passes in
    it."""
    size = Size(16, 64, 8)
    connect(cpu_devices=size.stages)
    program, _ = ours(size)
    began = time.perf_counter()
    lowered = program.step.lower(program.weights, program.batch)
    lowered.compile()
    whole = time.perf_counter() - began
    module = ir.Module.parse(lowered.as_text("stablehlo"), make_context())
    began = time.perf_counter()
    for phase in phases(Options()):
        run_passes(module, phase.passes, verify_each=False)
    return whole, time.perf_counter() - began


def report_compilation() -> None:
    """Prints the times of `compile_seconds`, from a process that has as many devices as it needs."""
    os.environ["PW_CACHE_DIR"] = ""  # Nothing comes from an earlier run.
    with another_process(None) as alone:
        whole, passes = alone.submit(compile_seconds).result()
    print(f"compile S=16 M=64: {whole:.1f} s (target 30), passes {passes:.1f} s of it (target 10)")


if __name__ == "__main__":
    run(__doc__.partition("\n")[0], cases, cpu_devices=DEVICES, rounds=20)
    report_compilation()

"""Cost of data parallelism over replicas, and the share of the exchange that a step hides: ratios of one run.

  python bench/replicas.py [--json PATH] [--rounds N] [--only TEXT]

The model is a stack of `tanh(x @ w)` with its loss, gradients and SGD. Measured cases run both sides in turn,
from the same weights. The lines before them are counted in plans, or simulated: no device takes part.
"""

from __future__ import annotations

import atexit
import dataclasses
import importlib.util
import itertools
import queue
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _ratios import Case, run
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import pathways as pw
from pathways.compiler.stages import Compiled
from pathways.runtime.plan.plan import Transfer

RATE = 0.1
DEVICES = 4
MAX_EXPOSED = 0.35


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    """Runs one placed function."""
    return jnp.tanh(x @ w)


def step_of(layers: Sequence[Callable[..., Any]], microbatches: int) -> Callable[..., Any]:
    """Returns a training step of a stack of layers."""

    def loss(params: list[Any], batch: Any) -> Any:
        x, y = batch
        for one, w in zip(layers, params, strict=True):
            x = one(w, x)
        return jnp.mean((x - y) ** 2)

    def step(params: list[Any], batch: Any) -> Any:
        value, grads = pw.accumulate(jax.value_and_grad(loss), microbatches)(params, batch)
        return value, [w - RATE * g for w, g in zip(params, grads, strict=True)]

    return step


def momentum_of(layers: Sequence[Callable[..., Any]], microbatches: int) -> Callable[..., Any]:
    """Returns a training step with momentum."""
    step = step_of(layers, microbatches)

    def with_momentum(params: list[Any], moments: list[Any], batch: Any) -> Any:
        value, new = step(params, batch)
        moments = [0.9 * m + (w - n) for m, w, n in zip(moments, params, new, strict=True)]
        return value, [w - m for w, m in zip(params, moments, strict=True)], moments

    return with_momentum


def arrays(layers: int, width: int, rows: int) -> tuple[list[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Returns weights and a batch."""
    random = np.random.default_rng(0)
    weights = random.standard_normal((layers, width, width)) / width**0.5
    inputs, targets = random.standard_normal((2, rows, width)).astype(np.float32)
    return list(weights.astype(np.float32)), (inputs, targets)


def replicated(replicas: int, layers: int, microbatches: int, schedule: str | None = None) -> Any:
    """Returns a program of some placed functions on the one slice of each replica."""
    slice = pw.make_virtual_device_set(replicas=replicas).add_slice((1,), ("x",))
    placed = [pw.jit(layer, devices=slice, stage=n) for n in range(layers)]
    return pw.program(step_of(placed, microbatches), schedule=schedule, donate_argnums=0)


def compiled(replicas: int, layers: int, microbatches: int, width: int = 64) -> Compiled:
    """Returns such a program for weights of a width."""
    weights, batch = arrays(layers, width, 4 * microbatches)
    return replicated(replicas, layers, microbatches, "gpipe").lower(weights, batch).compile()


def report_bytes() -> None:
    """Prints the bytes that each replica sends beside the ring's formula."""
    for replicas in (2, 3, 4):
        plan = compiled(replicas, 1, replicas, width=129).plan
        sent = sum(plan.bytes_moved(step) for step in plan.steps if isinstance(step, Transfer)) / replicas
        # The loss travels with the gradient.
        floor = 2 * (replicas - 1) / replicas * (129 * 129 + 1) * 4
        print(f"bytes sent by each of {replicas} replicas: {sent:.0f}, 2 (R - 1) / R x gradient {floor:.0f}")


def report_zero1() -> None:
    """Prints the bytes that a replica sends and keeps, with its state whole and in shards."""
    weights, batch = arrays(1, 128, 16)
    for replicas in (2, 4):
        slice = pw.make_virtual_device_set(replicas=replicas).add_slice((1,), ("x",))
        step = momentum_of([pw.jit(layer, devices=slice)], replicas)
        figures = []
        for zero1 in (False, True):
            program = pw.program(step, donate_argnums=(0, 1), zero1=zero1)
            plan = program.lower(weights, weights, batch).compile().plan
            sent = sum(plan.bytes_moved(step) for step in plan.steps if isinstance(step, Transfer)) / replicas
            moments = next(iter(plan.arguments[1].slots.values()))
            figures.append(f"sends {sent:.0f} B, keeps {plan.slot_types[moments].nbytes} B of moments")
        print(f"each of {replicas} replicas: {figures[0]}; with zero1 {figures[1]}")


@dataclasses.dataclass(frozen=True)
class Run:
    """Training step that is simulated.

    Attributes:
      name: its name.
      compute: seconds of computation in each replica.
      exchange: seconds of the exchange of all gradients by itself.
      stated: the paper's figure.
      inputs: the sources of the two times.
    """

    name: str
    compute: float
    exchange: float
    stated: str
    inputs: str


def runs() -> Iterator[Run]:
    """Yields the paper's figures for data parallelism over two islands."""
    # 6 operations for each parameter and token.
    compute = 6 * 64e9 * 2**20 / (512 * 123e12 * 0.35)
    yield Run(
        "64B, 2 x 512 cores",
        compute,
        457e9 * 8 / (81e12 * 128 / 1536),
        "97.2 % of one island",
        "457 GB (paper), DCN of 128 hosts at PaLM's 81 Tbps for 1536; assumed: 2^20 tokens at 35 % of peak",
    )
    compute = 6 * 540e9 * 2048 * 2048 / (6144 * 275e12 * 0.462)
    yield Run(
        "PaLM 540B, 2 pods",
        compute,
        2 * 540e9 * 4 * 8 / 81e12,
        "1.95x of one pod",
        "PaLM's paper: 4 B of gradient a parameter both ways at 81 Tbps, 4 M tokens at 46.2 % of peak",
    )


def simulated(functions: int, compute: float, exchange: float) -> float:
    """Returns the seconds of a step of two replicas with some placed functions each, one microbatch, by
    `pw-sim`."""
    program = compiled(2, functions, 2)
    part = compute / functions * 1e3
    times = {"kinds": {"fwd": f"{part / 3}ms", "bwd": f"{2 * part / 3}ms"}}
    if not exchange:
        return program.timeline(times).step_time
    sent = functions * 64 * 64 * 4
    return program.timeline(times, bandwidth=f"{sent / exchange}B/s").step_time


def report_simulated() -> None:
    """Prints how much of the exchange a step does not hide, and the paper's figures."""
    for exchange in (0.25, 0.5, 1.0):
        alone = simulated(4, 1.0, 0)
        exposed = (simulated(4, 1.0, exchange) - alone) / exchange
        # The last exchange has nothing to hide behind, the others the backwards of three functions.
        least = max(0.25, 1 - 3 * (2 / 3 / 4) / exchange)
        verdict = "" if exposed <= max(MAX_EXPOSED, least + 0.01) else "  over"
        print(
            f"exposed part of an exchange of {exchange:.2f} of the computation, 4 placed functions: "
            f"{exposed:.2f}, target {MAX_EXPOSED}, computation allows {least:.2f}{verdict}"
        )
    for case in runs():
        one, hidden = (case.compute / simulated(n, case.compute, case.exchange) for n in (1, 8))
        print(
            f"{case.name}: {100 * one:.1f} % of one island, {2 * one:.2f}x; paper: {case.stated}; overlapped "
            f"{100 * hidden:.1f} %, {2 * hidden:.2f}x\n  from {case.compute:.1f} s of computation and "
            f"{case.exchange:.2f} s of exchange: {case.inputs}"
        )


def cases() -> Iterator[Case]:
    """Yields the measured cases."""
    for replicas, width, rows in ((2, 512, 256), (2, 128, 256), (4, 512, 256)):
        yield data_parallel(replicas, width, rows)
    for replicas in (2, 4):
        yield shared_state(replicas, 512, 256)
    yield from prefetched()
    if importlib.util.find_spec("orbax") is not None:
        yield checkpointed(one_slice(2, 512, 256), "one slice", 1.02)
        # What the step itself may cost is in it.
        yield checkpointed(data_parallel(2, 512, 256), "R=2", 1.05)


def data_parallel(replicas: int, width: int, rows: int) -> Case:
    """Compares replicas with one SPMD program with a data axis on the same devices."""
    weights, batch = arrays(2, width, rows)
    program = replicated(replicas, 2, replicas)
    name = f"data parallel, R={replicas}, {rows} x {width}"
    return against_spmd(name, program, replicas, weights, batch)


def one_slice(devices: int, width: int, rows: int) -> Case:
    """Compares the whole step as one placed function on a slice of some devices with plain JAX."""
    slice = pw.make_virtual_device_set().add_slice((devices,), ("data",))
    placed = pw.jit(
        spmd_step,
        devices=slice,
        in_shardings=(PartitionSpec(), PartitionSpec("data")),
        out_shardings=PartitionSpec(),
    )
    program = pw.program(lambda params, batch: placed(params, batch), donate_argnums=0)
    weights, batch = arrays(2, width, rows)
    return against_spmd(f"one slice of {devices}, {rows} x {width}", program, devices, weights, batch)


def spmd_step(params: list[Any], batch: Any) -> Any:
    """Runs a training step as one writes it for `jax.jit`."""

    def loss(params: list[Any], batch: Any) -> Any:
        x, y = batch
        for w in params:
            x = layer(w, x)
        return jnp.mean((x - y) ** 2)

    value, grads = jax.value_and_grad(loss)(params, batch)
    return value, [w - RATE * g for w, g in zip(params, grads, strict=True)]


def against_spmd(name: str, program: Any, devices: int, weights: Any, batch: Any) -> Case:
    """Compares a program with one SPMD program with a data axis on as many devices."""
    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
    everywhere, by_rows = (NamedSharding(mesh, spec) for spec in (PartitionSpec(), PartitionSpec("data")))
    plain = jax.jit(spmd_step, donate_argnums=0, out_shardings=(everywhere, everywhere))
    state = {"ours": program.place(weights, batch)[0], "theirs": jax.device_put(weights, everywhere)}
    batches = {"ours": program.place(weights, batch)[1], "theirs": jax.device_put(batch, by_rows)}

    def side(which: str, step: Callable[..., Any]) -> Callable[[], Any]:
        def once() -> Any:
            value, state[which] = step(state[which], batches[which])
            return value, state[which]

        return once

    ours, theirs = side("ours", program), side("theirs", plain)
    np.testing.assert_allclose(ours()[0], theirs()[0], rtol=1e-4)
    return Case(name, "one SPMD jax.jit", 1.05, ours, theirs, is_return_timed=False)


def shared_state(replicas: int, width: int, rows: int) -> Case:
    """Compares momentum with `zero1` with the same with the state whole on each replica."""
    weights, batch = arrays(2, width, rows)
    slice = pw.make_virtual_device_set(replicas=replicas).add_slice((1,), ("x",))
    step = momentum_of([pw.jit(layer, devices=slice, stage=n) for n in range(2)], replicas)

    def side(zero1: bool) -> Callable[[], Any]:
        program = pw.program(step, donate_argnums=(0, 1), zero1=zero1)
        moments = [np.zeros_like(w) for w in weights]
        *state, placed = program.place(weights, moments, batch)

        def once() -> Any:
            value, *state[:] = program(*state, placed)
            return value, state

        return once

    ours, theirs = side(zero1=True), side(zero1=False)
    np.testing.assert_allclose(ours()[0], theirs()[0], rtol=1e-4)
    name = f"zero1, R={replicas}, {rows} x {width}, momentum"
    return Case(name, "state whole on each", 1.2, ours, theirs, is_return_timed=False)


def prefetched() -> Iterator[Case]:
    """Yields batches of the host through a step, put on the slices by `pw.prefetch` or by hand, one ahead."""
    weights, batch = arrays(2, 512, 256)
    program = replicated(2, 2, 2)
    step = program.lower(weights, batch).compile()
    wanted = step.input_shardings[0][1]
    batches = [tuple(array + n for array in batch) for n in range(32)]
    state = list(step.place(weights)[0])

    def ours() -> Any:
        nonlocal state
        with pw.prefetch(iter(batches), step, "batch", depth=1) as ready:
            for one in ready:
                value, state = step(state, one)
        return value, state

    def in_a_thread() -> Any:
        nonlocal state
        ready: queue.Queue[Any] = queue.Queue(1)

        def read() -> None:
            for one in batches:
                ready.put(jax.device_put(one, wanted))
            ready.put(None)

        threading.Thread(target=read).start()
        while (one := ready.get()) is not None:
            value, state = step(state, one)
        return value, state

    def in_turn() -> Any:
        nonlocal state
        waiting = jax.device_put(batches[0], wanted)
        for following in (*batches[1:], None):
            value, state = step(state, waiting)
            if following is not None:
                waiting = jax.device_put(following, wanted)
        return value, state

    # The first reads while steps run, as ours does; the second needs an input that is always ready.
    for versus, by_hand in (("a thread and a queue", in_a_thread), ("the next put after a step", in_turn)):
        yield Case("32 batches, pw.prefetch", versus, 1.02, ours, by_hand, is_return_timed=False)


def checkpointed(case: Case, what: str, target: float) -> Case:
    """Compares eleven steps with a save of the first state, by us and by Orbax around `jax.jit`."""
    import orbax.checkpoint.experimental.v1 as orbax

    folder = Path(tempfile.mkdtemp(prefix="pathways-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    numbers = itertools.count(1)
    under_way: list[Any] = []

    def ours() -> Any:
        _, state = case.ours()
        under_way.append(pw.checkpoint.save(folder / "ours", state, next(numbers)).wait)
        return [case.ours() for _ in range(10)][-1]

    def theirs() -> Any:
        _, state = case.theirs()
        path = folder / "theirs" / str(next(numbers))
        under_way.append(orbax.save_checkpointables_async(path, {"state": state}).result)
        return [case.theirs() for _ in range(10)][-1]

    def wait() -> None:
        for done in under_way:
            done()
        under_way.clear()
        shutil.rmtree(folder, ignore_errors=True)

    versus = "Orbax around one jax.jit"
    name = f"10 steps and a checkpoint, {what}"
    return Case(name, versus, target, ours, theirs, wait, is_return_timed=False)


def main() -> None:
    """Prints counts and simulations, then measures."""
    pw.connect(cpu_devices=DEVICES)
    report_bytes()
    report_zero1()
    report_simulated()
    run(__doc__.splitlines()[0] if __doc__ else "", cases, cpu_devices=DEVICES, rounds=20)


if __name__ == "__main__":
    main()

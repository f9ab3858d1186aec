"""Savings of conditions and of loops with an end that depends on values: ratios of times.

  python bench/branches.py [--hosts N] [--rounds N]

A branch of three slices against both branches and a selection; decoding that ends after 16 or 17 of at most
64 iterations, or on four hosts after all of them, against a `jax.lax.scan` of 64, also with a cache of 16 MiB
on each of two slices; and the bytes that `optax.MultiSteps` moves. Both sides of a case run in turn; the
figures are medians of the time until results are ready.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import pathways as pw

Fun = Callable[..., Any]
SLICES, ROWS, ITERATIONS = 4, 64, 64


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def placed(count: int) -> list[Fun]:
    devices = pw.make_virtual_device_set()
    return [pw.jit(layer, devices=devices.add_slice((1,), ("x",))) for _ in range(count)]


def data(width: int) -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    weights = [rng.normal(0, width**-0.5, (width, width)).astype(np.float32) for _ in range(SLICES)]
    return weights, rng.normal(size=(ROWS, width)).astype(np.float32)


def through(layers: Sequence[Fun], weights: Any, x: Any) -> Any:
    for f, w in zip(layers, weights, strict=True):
        x = f(w, x)
    return x


def optimizer() -> None:
    """Prints the bytes and the peak of a step of training with an optimizer on a condition."""
    layers, (weights, x) = placed(SLICES), data(256)
    every = optax.MultiSteps(optax.adam(1e-3), 2)

    def step(weights: Any, state: Any, x: Any) -> Any:
        value, grads = jax.value_and_grad(lambda w: jnp.mean(through(layers, w, x) ** 2))(weights)
        updates, state = every.update(grads, state, weights)
        return optax.apply_updates(weights, updates), state, value

    compiled = pw.program(step, donate_argnums=(0, 1)).lower(weights, every.init(weights), x).compile()
    moved = compiled.cost_analysis()["bytes transferred"]
    peaks = [memory.peak_memory_in_bytes for memory in compiled.memory_analysis().values()]
    print(f"MultiSteps(adam), d=256: {moved:,} bytes move, peak of the first slice {peaks[0] / 1e6:.2f} MB")


def skipped(layers: Sequence[Fun], weights: Any, x: Any, p: Any, choose: Fun) -> Any:
    """Calls a placed function, a branch of three slices, and the selection."""
    x = layers[0](weights[0], x)
    return choose(p, lambda x: through(layers[1:], weights[1:], x), lambda x: x, x)


def by_selection(p: Any, on_true: Fun, on_false: Fun, x: Any) -> Any:
    return jnp.where(p, on_true(x), on_false(x))


def branch(rounds: int) -> None:
    layers, (weights, x) = placed(SLICES), data(512)

    def forward(choose: Fun) -> Fun:
        return lambda w, x, p: skipped(layers, w, x, p, choose)

    def gradient(choose: Fun) -> Fun:
        return lambda w, x, p: jax.grad(lambda w: jnp.mean(forward(choose)(w, x, p) ** 2))(w)

    for name, make, p in (
        ("taken", forward, True),
        ("skipped", forward, False),
        ("skipped, gradient", gradient, False),
    ):
        ours, theirs = (pw.program(make(choose)) for choose in (jax.lax.cond, by_selection))
        compare(f"branch of 3 slices, d=512, {name}", ours, theirs, (weights, x, p), (weights, x, p), rounds)
    ours, theirs = _placed(pw.program(forward(jax.lax.cond)), (weights, x, False)), by_hand(weights, x)
    compare_runs("branch of 3 slices, d=512, skipped, against the same by hand", ours, theirs, rounds)


def by_hand(weights: Any, x: Any) -> Callable[[], Any]:
    """Returns the minimum of a skipped branch of three slices: a `jax.jit` and a transfer for each."""
    slices = jax.devices()[:SLICES]
    placed = [jax.device_put((w, np.bool_(False)), slice) for w, slice in zip(weights, slices, strict=True)]
    x = jax.device_put(x, slices[0])
    first = jax.jit(layer)
    skip = jax.jit(
        lambda w, p, x: jax.lax.cond(p, lambda: layer(w, x), lambda: jnp.zeros_like(x)), donate_argnums=2
    )
    select = jax.jit(jnp.where, donate_argnums=2)

    def run() -> None:
        own = value = first(placed[0][0], x)
        for arguments, slice in zip(placed[1:], slices[1:], strict=True):
            value = skip(*arguments, jax.device_put(value, slice))
        select(placed[0][1], jax.device_put(value, slices[0]), own).block_until_ready()

    return run


def decoding(width: int, chunk: int, ends: Sequence[int], rounds: int) -> None:
    layers, (weights, x) = placed(SLICES), data(width)

    def until(weights: Any, x: Any, end: Any) -> Any:
        iterate = lambda s: (s[0] + 1, through(layers, weights, s[1]))  # noqa: E731
        return jax.lax.while_loop(lambda s: (s[0] < end) & (s[0] < ITERATIONS), iterate, (0, x))[1]

    def always(weights: Any, x: Any) -> Any:
        return jax.lax.scan(lambda x, _: (through(layers, weights, x), None), x, None, length=ITERATIONS)[0]

    ours, theirs = pw.program(until, chunk=chunk), pw.program(always)
    for end in ends:
        name = f"decode, d={width}, chunk={chunk}, end {end} of {ITERATIONS}"
        compare(name, ours, theirs, (weights, x, end), (weights, x), rounds)


def attend(w: jax.Array, cache: jax.Array, x: jax.Array, n: Any) -> tuple[jax.Array, jax.Array]:
    """Runs an iteration with a cache: one row is written, and one read."""
    cache = jax.lax.dynamic_update_slice(cache, x[None], (n, 0))
    return cache, jnp.tanh((x + cache[n] / 2) @ w)


def caching(rows: int, width: int, chunk: int, ends: Sequence[int], rounds: int) -> None:
    """Measures decoding with a cache on each of two slices, which iterations update in place."""
    devices = pw.make_virtual_device_set()
    layers = [pw.jit(attend, devices=devices.add_slice((1,), ("x",))) for _ in range(2)]
    weights, x = [np.eye(width, dtype=np.float32)] * 2, np.ones(width, np.float32)

    def iterate(weights: Any, n: Any, caches: Any, x: Any) -> Any:
        updated = []
        for f, w, cache in zip(layers, weights, caches, strict=True):
            cache, x = f(w, cache, x, n)
            updated.append(cache)
        return n + 1, updated, x

    def until(weights: Any, caches: Any, x: Any, end: Any) -> Any:
        goes_on = lambda s: (s[0] < end) & (s[0] < ITERATIONS)  # noqa: E731
        return jax.lax.while_loop(goes_on, lambda s: iterate(weights, *s), (0, caches, x))

    def always(weights: Any, caches: Any, x: Any) -> Any:
        return jax.lax.scan(
            lambda s, _: (iterate(weights, *s), None), (0, caches, x), None, length=ITERATIONS
        )[0]

    def filling(program: Any, *end: Any) -> Callable[[], Any]:
        caches = [jnp.zeros((rows, width)) for _ in range(2)]
        compiled = program.lower(weights, caches, x, *end).compile()
        peak = max(memory.peak_memory_in_bytes for memory in compiled.memory_analysis().values())
        print(f"peak with a cache of {caches[0].nbytes / 1e6:.1f} MB: {peak / 1e6:.1f} MB")
        brought, caches, first = compiled.place(weights, caches, x)

        def run() -> None:
            nonlocal caches
            _, caches, _ = jax.block_until_ready(compiled(brought, caches, first, *end))

        return run

    ours, theirs = (pw.program(fun, donate_argnums=1, chunk=chunk) for fun in (until, always))
    for end in ends:
        name = f"decode with a cache, {rows}x{width}, chunk={chunk}, end {end} of {ITERATIONS}"
        compare_runs(name, filling(ours, end), filling(theirs), rounds)


def compare(name: str, ours: Any, theirs: Any, args: Any, their_args: Any, rounds: int) -> None:
    """Prints the medians of both, and their ratio."""
    compare_runs(name, _placed(ours, args), _placed(theirs, their_args), rounds)


def compare_runs(name: str, ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> None:
    """Prints the medians of both sides, each a function that runs it once, and their ratio."""
    sides = (ours, theirs)
    for run in sides:
        run()
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for n, run in enumerate(sides):
            started = time.perf_counter()
            run()
            times[n].append(time.perf_counter() - started)
    mine, other = (1e3 * statistics.median(each) for each in times)
    print(f"{name}: {mine:.2f} ms, {other:.2f} ms, ratio {mine / other:.2f}", flush=True)


def _placed(program: Any, args: Any) -> Callable[[], Any]:
    compiled = program.lower(*args).compile()
    brought = compiled.place(*args)

    def run() -> None:
        for leaf in jax.tree.leaves(compiled(*brought)):
            leaf.block_until_ready()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hosts", type=int, default=0, help="run decoding over so many workers instead")
    parser.add_argument("--rounds", type=int, default=15, help="calls of each side")
    options = parser.parse_args()
    if options.hosts:
        pw.connect(hosts=options.hosts, devices_per_host=-(-SLICES // options.hosts))
        # A loop that runs to its end shows the cost of the checks.
        chunk, ends = (8, (16, 17)) if options.hosts < 4 else (16, (16, ITERATIONS))
        decoding(64, chunk, ends, options.rounds)
        pw.disconnect()
        return
    pw.connect(cpu_devices=SLICES)
    optimizer()
    branch(options.rounds)
    decoding(64, 8, (16, 17), options.rounds)
    decoding(512, 16, (16, 17), options.rounds)
    caching(16384, 256, 8, (16, ITERATIONS), options.rounds)


if __name__ == "__main__":
    main()

"""Costs of `pw.all_to_all`: a mixture of experts against the same by hand and on one mesh.

  python bench/moe.py [--hosts N] [--rounds N] [--only TEXT]

Forward and gradient of a layer of experts on 4 and 8 slices, against placed functions that cut and join, and
against `jax.shard_map` with `jax.lax.all_to_all` over as many devices; one small exchange, against its
launches alone, in one process or on hosts; on hosts also large blocks, against the same with counts for half
of their rows; and lowering 12 layers in a pipeline, against the same without exchanges. Both sides of a case
run in turn; the figures are minima of the time until results are ready.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import pathways as pw

Fun = Callable[..., Any]
Exchange = Callable[[Sequence[Any]], list[Any]]
WIDTH, TOKENS = 64, 1024


def route(w: jax.Array, x: jax.Array) -> jax.Array:
    """Sends as many tokens to each expert."""
    return jnp.tanh(x @ w).reshape(-1, w.shape[1] // WIDTH, WIDTH).swapaxes(0, 1)


def expert(w: jax.Array, received: jax.Array) -> jax.Array:
    return jnp.tanh(received @ w)


def combine(x: jax.Array, returned: jax.Array) -> jax.Array:
    return x + returned.swapaxes(0, 1).reshape(x.shape[0], -1, WIDTH).mean(1)


def cut(blocks: jax.Array) -> tuple[jax.Array, ...]:
    return tuple(blocks)


def join(*blocks: jax.Array) -> jax.Array:
    return jnp.stack(blocks)


def slices_of(count: int) -> list[Any]:
    devices = pw.make_virtual_device_set()
    return [devices.add_slice((1,), ("x",)) for _ in range(count)]


def on(slices: Sequence[Any], function: Fun) -> list[Fun]:
    return [pw.jit(function, devices=slice) for slice in slices]


def by_hand(slices: Sequence[Any]) -> Exchange:
    """Returns an exchange of placed functions, between which all blocks are transfers."""
    cuts, joins = on(slices, cut), on(slices, join)

    def exchange(blocks: Sequence[Any]) -> list[Any]:
        sent = [one(block) for one, block in zip(cuts, blocks, strict=True)]
        return [one(*(row[t] for row in sent)) for t, one in enumerate(joins)]

    return exchange


def layer_of(slices: Sequence[Any], exchange: Exchange) -> Fun:
    routes, experts, combines = (on(slices, f) for f in (route, expert, combine))

    def layer(params: Any, x: Sequence[Any]) -> list[Any]:
        routed = exchange([one(w, tokens) for one, w, tokens in zip(routes, params[0], x, strict=True)])
        worked = [one(w, blocks) for one, w, blocks in zip(experts, params[1], routed, strict=True)]
        return [one(*values) for one, *values in zip(combines, x, exchange(worked), strict=True)]

    return layer


def gradient_of(layer: Fun, layers: int = 1) -> Fun:
    def loss(params: Any, x: Any) -> Any:
        for n in range(layers):
            x = layer(params[n], x)
        return sum((tokens**2).mean() for tokens in x)

    return jax.value_and_grad(loss)


def data(count: int, layers: int = 1, tokens: int = TOKENS) -> tuple[Any, list[np.ndarray]]:
    rng = np.random.default_rng(0)

    def arrays(*shape: int) -> list[np.ndarray]:
        return [rng.normal(0, WIDTH**-0.5, shape).astype(np.float32) for _ in range(count)]

    params = [(arrays(WIDTH, count * WIDTH), arrays(WIDTH, WIDTH)) for _ in range(layers)]
    return params, arrays(tokens // count, WIDTH)


def on_one_mesh(count: int) -> tuple[Fun, Any]:
    """Returns the forward and gradient over devices of one mesh, and its arguments."""
    mesh = jax.make_mesh((count,), ("x",))

    def exchange(blocks: jax.Array) -> jax.Array:
        return jax.lax.all_to_all(blocks, "x", 0, 0)

    def loss(params: Any, x: jax.Array) -> jax.Array:
        (router, matrix), tokens = (jax.tree.map(lambda a: a[0], params[0])), x[0]
        y = combine(tokens, exchange(expert(matrix, exchange(route(router, tokens)))))
        return jax.lax.psum((y**2).mean(), "x")

    whole = jax.shard_map(loss, mesh=mesh, in_specs=P("x"), out_specs=P())
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *zip(*data(count)[0][0], strict=True))
    arguments = jax.device_put(([stacked], np.stack(data(count)[1])), jax.NamedSharding(mesh, P("x")))
    return jax.jit(jax.value_and_grad(whole)), arguments


def ready(program: Fun, args: Any) -> Callable[[], None]:
    """Returns a function that runs a program once."""
    if isinstance(program, pw.Program):
        compiled = program.lower(*args).compile()
        program, args = compiled, compiled.place(*args)

    def run() -> None:
        jax.block_until_ready(program(*args))

    return run


def compare(name: str, rounds: int, **sides: Callable[[], None]) -> None:
    """Prints the minimum of each side."""
    for run in sides.values():
        run()
    times: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, run in sides.items():
            started = time.perf_counter()
            run()
            times[side].append(time.perf_counter() - started)
    figures = ", ".join(f"{side.replace('_', ' ')} {1e3 * min(each):.3f} ms" for side, each in times.items())
    print(f"{name}: {figures}", flush=True)


def training(count: int, rounds: int) -> None:
    """Compares forward and gradient of a layer."""
    slices = slices_of(count)
    args = data(count)
    compare(
        f"S={count}, forward and gradient, d={WIDTH}, {TOKENS} tokens",
        rounds,
        all_to_all=ready(pw.program(gradient_of(layer_of(slices, pw.all_to_all))), args),
        by_hand=ready(pw.program(gradient_of(layer_of(slices, by_hand(slices)))), args),
        one_mesh=ready(*on_one_mesh(count)),
    )


def exchange(count: int, rounds: int) -> None:
    """Compares one small exchange with launches alone: those around it, without transfers."""
    slices = slices_of(count)
    before, after = on(slices, jnp.sin), on(slices, jnp.cos)

    def program(middle: Exchange) -> Any:
        def run(x: Any) -> list[Any]:
            blocks = middle([one(b) for one, b in zip(before, x, strict=True)])
            return [one(b) for one, b in zip(after, blocks, strict=True)]

        return pw.program(run)

    args = ([np.ones((count, 2), np.float32)] * count,)
    sides = {"all_to_all": pw.all_to_all, "by_hand": by_hand(slices), "launches_alone": list}
    runs = {name: ready(program(middle), args) for name, middle in sides.items()}
    compare(f"one small exchange, S={count}", 20 * rounds, **runs)


def routed(count: int, nbytes: int, rounds: int) -> None:
    """Compares an exchange of blocks of some bytes with the same where half of the rows are valid."""
    slices = slices_of(count)
    rows = nbytes // (4 * WIDTH)
    before, after = on(slices, jnp.sin), on(slices, jnp.cos)

    def run(x: Sequence[Any], counts: Sequence[Any] | None) -> list[Any]:
        blocks = [one(b) for one, b in zip(before, x, strict=True)]
        if counts is None:
            received = pw.all_to_all(blocks)
        else:
            received, _ = pw.all_to_all(blocks, counts=counts)
        return [one(b) for one, b in zip(after, received, strict=True)]

    x = [np.ones((count, rows, WIDTH), np.float32)] * count
    half = [np.full(count, rows // 2, np.int32)] * count
    compare(
        f"{nbytes >> 10} KB a pair, S={count}",
        rounds,
        whole=ready(pw.program(run), (x, None)),
        half_routed=ready(pw.program(run), (x, half)),
    )


def lowering(count: int, layers: int, microbatches: int) -> None:
    """Prints the seconds to lower a pipeline of layers with exchanges, and without."""
    slices = slices_of(count)
    args = data(count, layers, count * count * microbatches)
    for name, middle in (("all to all", pw.all_to_all), ("by hand", by_hand(slices)), ("no exchange", list)):
        loss = gradient_of(layer_of(slices, middle), layers)
        program = pw.program(lambda p, x, f=loss: pw.accumulate(f, microbatches)(p, x), schedule="1f1b")
        started = time.perf_counter()
        program.lower(*args)
        print(
            f"S={count}, {layers} layers, M={microbatches}, {name}: lowered in "
            f"{time.perf_counter() - started:.1f} s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hosts", type=int, default=0, help="run exchanges over so many workers instead")
    parser.add_argument("--rounds", type=int, default=30, help="calls of each side")
    parser.add_argument("--only", default="", help="cases with this in their name: train, exchange, lower")
    options = parser.parse_args()
    if options.hosts:
        pw.connect(hosts=options.hosts)
        exchange(options.hosts, options.rounds)
        for nbytes in (1 << 20, 1 << 16):
            routed(options.hosts, nbytes, options.rounds)
        pw.disconnect()
        return
    pw.connect(cpu_devices=8)
    if options.only in "train":
        training(4, options.rounds)
        training(8, options.rounds)
    if options.only in "exchange":
        exchange(4, options.rounds)
    if options.only in "lower":
        lowering(8, 12, 8)


if __name__ == "__main__":
    main()

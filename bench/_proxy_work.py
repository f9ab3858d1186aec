"""Work of an unmodified JAX program, timed by itself, for `proxy.py`: the same locally and behind a server.

Before and after each piece it writes a line, and waits for one, so that the parent can read the server's
usage.
"""

from __future__ import annotations

import functools
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

MIB = 64
TRANSFERS = 7
CALLS = 128
AHEAD = 32
LAYERS = 4
WIDTH = 128

Array = jax.Array


def seconds_of(work: Callable[[], Any], times: int) -> float:
    """Returns the median of some runs, after one that is not counted."""
    work()
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def chain() -> dict[str, float]:
    """Measures the microseconds of each of some dependent calls of a tiny function."""
    return _chain(jnp.float32(0))


def _chain(start: jax.Array) -> dict[str, float]:
    step = jax.jit(lambda x: x + 1)

    def work() -> None:
        x = start
        for _ in range(CALLS):
            x = step(x)
        x.block_until_ready()

    return {"us": seconds_of(work, 40) / CALLS * 1e6}


def chain_over_two() -> dict[str, float]:
    """Measures the same as `chain` on an array over the first and the last device."""
    devices = jax.devices()
    mesh = jax.sharding.Mesh([devices[0], devices[-1]], ("x",))
    return _chain(jax.device_put(jnp.zeros(2), jax.sharding.NamedSharding(mesh, jax.P("x"))))


def _transfer(work: Callable[[], Any]) -> dict[str, float]:
    """Measures the MiB/s of a transfer, and its milliseconds of CPU in this process."""
    began = time.process_time()
    seconds = seconds_of(work, TRANSFERS)
    return {"speed": MIB / seconds, "cpu_ms": (time.process_time() - began) / (TRANSFERS + 1) * 1e3}


def puts() -> dict[str, float]:
    """Puts an array of floats on a device."""
    value = np.ones(MIB << 18, np.float32)
    return _transfer(lambda: jax.device_put(value).block_until_ready())


def fetches() -> dict[str, float]:
    """Fetches an array of floats from a device."""
    # Each is fetched once: JAX caches the value.
    arrays = [jnp.full(MIB << 18, i, jnp.float32) for i in range(TRANSFERS + 1)]
    jax.block_until_ready(arrays)
    return _transfer(lambda: np.asarray(arrays.pop()))


@functools.cache
def _training() -> Callable[[], None]:
    """Returns a step of a small transformer on a mesh of 2 x 4, all of whose state is donated."""
    mesh = jax.make_mesh((2, 4), ("data", "model"), (AxisType.Auto,) * 2)
    rng = np.random.default_rng(0)
    across, along = P(None, "model"), P("model", None)
    specs = {"q": across, "k": across, "v": across, "o": along, "up": across, "down": along}
    shapes = {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    layer = {
        name: jax.device_put(
            rng.normal(size=shapes.get(name, (WIDTH, WIDTH)), scale=0.02).astype(np.float32),
            NamedSharding(mesh, spec),
        )
        for name, spec in specs.items()
    }
    weights = {"layers": [jax.tree.map(jnp.copy, layer) for _ in range(LAYERS)], "head": jnp.copy(layer["q"])}
    weights["embedding"] = jnp.copy(layer["k"])

    def loss(weights: Any, x: Array) -> Array:
        h = x @ weights["embedding"]
        for w in weights["layers"]:
            q, k, v = h @ w["q"], h @ w["k"], h @ w["v"]
            h = h + jax.nn.softmax(q @ k.swapaxes(-1, -2) / WIDTH**0.5) @ v @ w["o"]
            h = h + jax.nn.gelu(h @ w["up"]) @ w["down"]
        return jnp.mean((h @ weights["head"] - x) ** 2)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(weights: Any, momentum: Any, x: Array) -> Any:
        value, slopes = jax.value_and_grad(loss)(weights, x)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, slopes)
        return jax.tree.map(lambda w, m: w - 0.01 * m, weights, momentum), momentum, value

    x = jax.device_put(rng.normal(size=(8, 64, WIDTH)).astype(np.float32), NamedSharding(mesh, P("data")))
    state = [weights, jax.tree.map(jnp.zeros_like, weights)]
    assert len(jax.tree.leaves(state)) == 52

    def work() -> None:
        state[0], state[1], value = step(*state, x)
        value.block_until_ready()

    work()
    return work


def training_step() -> dict[str, float]:
    """Measures the milliseconds of a step of training."""
    return {"ms": seconds_of(_training(), 5) * 1e3}


def many_calls(calls: int = 5000) -> dict[str, float]:
    """Measures calls of a tiny function, and returns their number."""
    step = jax.jit(lambda x: x + 1)
    x = jnp.float32(0)
    for i in range(calls):
        x = step(x)
        if i % 1000 == 0:
            x.block_until_ready()
    x.block_until_ready()
    return {"calls": calls}


def very_many_calls() -> dict[str, float]:
    """Measures enough calls to show the memory that a process keeps for each."""
    return many_calls(100_000)


def mpmd_step() -> dict[str, float]:
    """Measures a step that Shardy has partitioned, by `pw.from_mpmd` or as JAX sends it."""
    sys.path.append(str(Path(__file__).parents[1] / "test" / "support"))
    name = "one_fwd_one_bwd"
    step: Callable[[], Any]
    if jax.config.jax_platforms == "proxy":
        program = importlib.import_module("proxy_mpmd").ProxiedProgram(name)
        step = functools.partial(program, program.arguments())
    else:
        from_mpmd = importlib.import_module("pathways.compiler.mpmd.from_mpmd")
        partitioned = importlib.import_module("stored_mpmd").partitioned(name, "call")
        compiled = from_mpmd.lower_partitioned(partitioned).compile()
        args = importlib.import_module("mpmd_programs").PROGRAMS[name].args
        step = functools.partial(compiled, *compiled.place(*args))

    def alone() -> None:
        jax.block_until_ready(step())

    def steps() -> None:
        jax.block_until_ready([step() for _ in range(AHEAD)])

    return {"ms": seconds_of(alone, 200) * 1e3, "ms ahead": seconds_of(steps, 20) / AHEAD * 1e3}


def idle() -> dict[str, float]:
    """Measures two idle seconds."""
    time.sleep(2)
    return {"seconds": 2}


WORK = {
    work.__name__: work
    for work in (
        chain,
        chain_over_two,
        training_step,
        puts,
        fetches,
        many_calls,
        very_many_calls,
        mpmd_step,
        idle,
    )
}


if __name__ == "__main__":
    jax.devices()
    for name in sys.argv[1:]:
        print(f"begin {name}", flush=True)
        input()
        print(json.dumps(WORK[name]()), flush=True)
        input()

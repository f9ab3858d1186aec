"""Work of an unmodified JAX program, timed by itself, for `proxy.py`: the same locally and behind a server.

Before and after each piece it writes a line, and waits for one, so that the parent can read the server's
usage.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
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


def _chain_of(step: Callable[[Array], Array], start: Array, calls: int) -> dict[str, float]:
    def work() -> None:
        x = start
        for _ in range(calls):
            x = step(x)
        x.block_until_ready()

    return {"us": seconds_of(work, 50) / calls * 1e6}


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
def _training() -> Callable[[], Array]:
    """Returns a function that issues a step of a small transformer on a mesh of 2 x 4, all of whose state is
    donated, and returns its loss."""
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

    def issue() -> Array:
        state[0], state[1], value = step(*state, x)
        return value

    issue().block_until_ready()
    return issue


def training_step() -> dict[str, float]:
    """Measures the milliseconds of a step of training."""
    issue = _training()
    return {"ms": seconds_of(lambda: issue().block_until_ready(), 5) * 1e3}


def training_ahead() -> dict[str, float]:
    """Measures the milliseconds of each of some steps of training, when the last one is waited for."""
    steps = 8
    issue = _training()

    def work() -> None:
        jax.block_until_ready([issue() for _ in range(steps)])

    return {"ms": seconds_of(work, 3) / steps * 1e3}


def seventy_steps() -> dict[str, float]:
    """Trains for 70 steps after it has said that the step is compiled."""
    issue = _training()
    print("compiled", flush=True)
    input()
    for _ in range(70):
        issue().block_until_ready()
    return {}


def island_copies() -> dict[str, float]:
    """Measures the milliseconds of a copy of 64 MiB between islands, between two functions there."""
    devices = jax.devices()
    first, second = (
        NamedSharding(jax.sharding.Mesh(devices[n : n + 2], ("x",)), P("x")) for n in (0, len(devices) // 2)
    )
    # A program of `pw` donates what no other function reads.
    before, after = jax.jit(lambda x: x + 1), jax.jit(lambda x: x * 2, donate_argnums=0)
    x = jax.device_put(jnp.ones(MIB << 18), first)

    def work() -> None:
        after(jax.device_put(before(x), second)).block_until_ready()

    return {"ms": seconds_of(work, 9) * 1e3}


def pw_island_copies() -> dict[str, float]:
    """Measures the same as a program of `pw`."""
    pw = importlib.import_module("pathways")
    pw.connect(hosts=2, devices_per_host=2)
    devices = pw.make_virtual_device_set()
    first, second = (devices.add_slice(shape=(2,), axis_names=("x",)) for _ in range(2))
    before = pw.jit(lambda x: x + 1, devices=first, in_shardings=P("x"), out_shardings=P("x"))
    after = pw.jit(lambda x: x * 2, devices=second, in_shardings=P("x"), out_shardings=P("x"))
    program = pw.program(lambda x: after(before(x)))
    x = before(jnp.ones(MIB << 18))

    def work() -> None:
        jax.block_until_ready(program(x))

    return {"ms": seconds_of(work, 9) * 1e3}


def readme_step() -> dict[str, float]:
    """Measures the step of a pipeline in the README, a program of 56 launches: waited for, and the CPU of
    this thread."""
    return _readme_step(importlib.import_module("pathways"))


def readme_step_on_hosts() -> dict[str, float]:
    """Measures the same on four hosts of this process."""
    pw = importlib.import_module("pathways")
    pw.connect(hosts=4)
    return _readme_step(pw)


def _readme_step(pw: Any) -> dict[str, float]:
    devices = pw.make_virtual_device_set()
    stages = [pw.jit(lambda w, x: jnp.tanh(x @ w), devices=devices.add_slice((1,), ("x",))) for _ in range(4)]

    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        for stage, w in zip(stages, params, strict=True):
            x = stage(w, x)
        return jnp.mean((x - y) ** 2)

    def step(params: Any, batch: Any) -> Any:
        value, slopes = pw.accumulate(jax.value_and_grad(loss), 8)(params, batch)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, params, slopes)

    program = pw.program(step, schedule="1f1b", donate_argnums=0)
    params = list(jax.random.normal(jax.random.key(0), (4, 16, 16)) / 4)
    batch = jnp.ones((32, 16)), jnp.zeros((32, 16))
    compiled = program.lower(params, batch).compile()
    assert compiled.cost_analysis()["launches"] == 56
    state = [*compiled.place(params, batch)]

    def issue() -> Any:
        value, state[0] = compiled(*state)
        return value

    def thread_seconds() -> float:
        began = time.thread_time()
        values = [issue() for _ in range(AHEAD)]
        taken = time.thread_time() - began
        jax.block_until_ready((values, state[0]))
        return taken / AHEAD

    return {
        "ms": seconds_of(lambda: jax.block_until_ready((issue(), state[0])), 200) * 1e3,
        "thread ms": statistics.median(thread_seconds() for _ in range(10)) * 1e3,
    }


def program_chain() -> dict[str, float]:
    """Measures the microseconds of each of 100 dependent calls of a program of one launch."""
    pw = importlib.import_module("pathways")
    stage = pw.make_virtual_device_set().add_slice((1,), ("x",))
    step = pw.program(pw.jit(lambda x: x + 1, devices=stage))
    return _chain_of(step, step(jnp.float32(0)), 100)


def jit_chain() -> dict[str, float]:
    """Measures the same of a function under `jax.jit`."""
    step = jax.jit(lambda x: x + 1)
    return _chain_of(step, step(jnp.float32(0)), 100)


def loop_by_value() -> dict[str, float]:
    """Measures the microseconds of an iteration of a loop over two slices that ends depending on a value."""
    pw = importlib.import_module("pathways")
    devices = pw.make_virtual_device_set()
    first, second = (pw.jit(jnp.sin, devices=devices.add_slice((1,), ("x",))) for _ in range(2))

    def body(state: Any) -> Any:
        return state[0] + 1, second(first(state[1]))

    loop = pw.program(lambda x, end: jax.lax.while_loop(lambda state: state[0] < end, body, (0, x)), chunk=1)
    x = jnp.ones(4)
    jax.block_until_ready(loop(x, 100))
    count = 1000
    return {"us": seconds_of(lambda: jax.block_until_ready(loop(x, count)), 5) / count * 1e6}


def lost_island() -> dict[str, float]:
    """Steps on the last island until it is lost, and once on the first; returns the time then."""
    step = jax.jit(lambda x: x + 1)
    here, there = jax.devices()[0], jax.devices()[-1]
    step(jax.device_put(1.0, here)).block_until_ready()
    x = jax.device_put(1.0, there)
    step(x).block_until_ready()
    print("stepping", flush=True)
    try:
        while True:
            x = step(x)
            kept = float(x)
    except jax.errors.JaxRuntimeError:
        assert float(step(jax.device_put(kept, here))) == kept + 1
    return {"time": time.time()}


def flood() -> dict[str, float]:
    """Calls a tiny function without end."""
    step = jax.jit(lambda x: x + 1)
    x = step(jnp.float32(0)).block_until_ready()
    print("flooding", flush=True)
    while True:
        x = step(x)


def attached_steps() -> dict[str, float]:
    """Measures the microseconds of a waited step of `pw` on the second island of a service."""
    pw = importlib.import_module("pathways")
    pw.connect("lab")
    devices = pw.make_virtual_device_set()
    _, second = (devices.add_slice(shape=(1,), axis_names=("x",)) for _ in range(2))
    step = pw.jit(lambda x: x + 1, devices=second)
    x = step(jnp.float32(0))

    def work() -> None:
        jax.block_until_ready(step(x))

    return {"us": seconds_of(work, 500) * 1e6}


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
        training_ahead,
        seventy_steps,
        readme_step,
        readme_step_on_hosts,
        program_chain,
        jit_chain,
        loop_by_value,
        island_copies,
        pw_island_copies,
        lost_island,
        flood,
        attached_steps,
        puts,
        fetches,
        many_calls,
        very_many_calls,
        mpmd_step,
        idle,
    )
}


if __name__ == "__main__":
    if "RANK" in os.environ:
        jax.distributed.initialize(os.environ["ADDRESS"], 2, int(os.environ["RANK"]))
    if sys.argv[1] not in ("pw_island_copies", "attached_steps"):
        jax.devices()
    for name in sys.argv[1:]:
        print(f"begin {name}", flush=True)
        input()
        print(json.dumps(WORK[name]()), flush=True)
        input()

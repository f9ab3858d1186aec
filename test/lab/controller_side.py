"""Controller on a machine of the lab: trains a pipeline over hosts on request, one line of JSON each.

It first trains the same steps in this process. Each reply is a line of JSON: the seconds taken, and the sum
of all bits of the weights afterwards, or the error.

  {"do": "train", "steps": 3}      from the first weights, each step from the results of the last one
  {"do": "resilient", "steps": 300} the same with `pw.resilient`, a pause of 10 ms after each step
  {"do": "touch", "steps": 100}    steps of one host that compute almost nothing
  {"do": "fetch"}                  eight results in one `jax.device_get`
  {"do": "move", "size": 1048576}  an array of this many bytes from the first host to the last
  {"do": "links"}                  `pw.measure_links()`
  {"do": "status"}                 `pw.status()`
  {"do": "addresses"}              the processes of all hosts, and the addresses that they listen on
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pathways as pw
from pathways.runtime.clusters.connect import controller

CONFIG = json.loads(sys.argv[1])
STAGES, MICROBATCHES, WIDTH, ROWS = CONFIG["stages"], CONFIG.get("microbatches", 8), 16, 4


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def loss_of_layer(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((layer(w, x) - y) ** 2)


def training(slices: Sequence[Any]) -> Any:
    """Returns a training step of a pipeline over some slices."""
    layers = [pw.jit(layer, devices=slice) for slice in slices[:-1]]
    layers.append(pw.jit(loss_of_layer, devices=slices[-1]))

    def loss(weights: Any, batch: Any) -> Any:
        x, y = batch
        for w, fun in zip(weights[:-1], layers[:-1], strict=True):
            x = fun(w, x)
        return layers[-1](weights[-1], x, y)

    def step(weights: Any, batch: Any) -> Any:
        value, grads = pw.accumulate(jax.value_and_grad(loss), MICROBATCHES)(weights, batch)
        return value, [w - 0.1 * grad for w, grad in zip(weights, grads, strict=True)]

    schedule = CONFIG["schedule"]
    if schedule == "search":
        # A stage here takes far less time than a delay of the network.
        times = Path(tempfile.mkdtemp(), "times.json")
        times.write_text(json.dumps({"kinds": {"fwd": "0.2ms", "bwd": "0.2ms"}}))
        schedule = f"search(times={times}, {pw.measure_links()}, seconds=10)"
    return pw.program(step, schedule=schedule)


def first_weights_and_batch() -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    weights = list(random.standard_normal((STAGES, WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5)
    return weights, tuple(random.standard_normal((2, MICROBATCHES * ROWS, WIDTH)).astype(np.float32))


def sum_of_bits(weights: Any) -> str:
    bits = [np.asarray(leaf).tobytes() for leaf in jax.device_get(weights)]
    return hashlib.sha256(b"".join(bits)).hexdigest()


def trained(program: Any, steps: int) -> dict[str, Any]:
    weights, batch = first_weights_and_batch()
    for _ in range(steps):
        _, weights = program(weights, batch)
    return {"sum": sum_of_bits(weights)}


class Hosts:
    """Commands that the controller runs on hosts."""

    def __init__(self) -> None:
        devices = pw.make_virtual_device_set()
        names = [f"island{n % len(pw.cluster().islands)}" for n in range(STAGES)]
        slices = [devices.add_slice((1,), ("x",), island=name) for name in names]
        self._slices = slices
        first = pw.jit(lambda x: x + 1, devices=slices[0])
        self.touching = pw.program(lambda x: first(x))
        self.making = pw.program(lambda x: [first(x + n) for n in range(8)])
        double = pw.jit(lambda x: x * 2, devices=slices[-1])
        self.moving = pw.program(lambda x: double(x))

    @functools.cached_property
    def training(self) -> Any:
        """The training step, scheduled for the network as it is at first use."""
        return training(self._slices)

    def train(self, steps: int) -> dict[str, Any]:
        return trained(self.training, steps)

    def resilient(self, steps: int) -> dict[str, Any]:
        weights, batch = first_weights_and_batch()

        def train_step(weights: Any, batch: Any) -> Any:
            loss, weights = self.training(weights, batch)
            return weights, loss

        numbers = []
        feeds = (self.training, "batch")
        with pw.resilient(train_step, weights, [batch] * steps, feeds=feeds, every=20) as run:
            for n, _ in run.steps(steps):
                numbers.append(n)
                time.sleep(0.01)
            found = run.status()
        assert numbers == [*range(steps)]
        return {"sum": sum_of_bits(run.state), "losses": found.losses, "version": found.version}

    def touch(self, steps: int) -> dict[str, Any]:
        x = np.float32([1])
        for _ in range(steps):
            x = self.touching(x)
        return {"sum": str(float(x[0]))}

    def fetch(self) -> dict[str, Any]:
        results = jax.block_until_ready(self.making(np.float32([0])))
        began = time.monotonic()
        values = jax.device_get(results)
        return {"took": time.monotonic() - began, "sum": str([float(value[0]) for value in values])}

    def move(self, size: int) -> dict[str, Any]:
        array = self.touching(np.zeros(size // 4, np.float32)).block_until_ready()
        began = time.monotonic()
        moved = self.moving(array).block_until_ready()
        return {"took": time.monotonic() - began, "sum": str(moved.shape)}

    def links(self) -> dict[str, Any]:
        links = pw.measure_links()
        return {"latency": links.latency, "bandwidth": links.bandwidth, "text": str(links)}

    def status(self) -> dict[str, Any]:
        began = time.monotonic()
        status = pw.status()
        return {"took": time.monotonic() - began, "text": str(status)}

    def addresses(self) -> dict[str, Any]:
        found = controller()
        assert found is not None
        return {
            "pids": [host.process.pid for host in found.hosts],
            "data": [host.ready.data_address for host in found.hosts],
            "probe": [host.ready.probe_address for host in found.hosts],
        }


def main() -> None:
    """Connects, reports so, and runs the commands of standard input."""
    # The expected values come from this process alone.
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice((1,), ("x",)) for _ in range(STAGES)]
    here = training(slices)
    expected = [trained(here, steps)["sum"] for steps in (1, 2, 3)] if CONFIG["schedule"] != "search" else []
    for slice in slices:
        pw.release(slice)
    settings = CONFIG.get("options", {})
    launcher = pw.Ssh(bind=CONFIG["bind"], start=CONFIG["start"], ports=settings.pop("ports", None))
    options = pw.HostOptions(**settings)
    islands = [pw.Island(hosts=island) for island in CONFIG["islands"]]
    began = time.monotonic()
    try:
        pw.connect(launcher, islands=islands, options=options)
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - began}))
        return
    hosts = Hosts()
    print(json.dumps({"expected": expected, "seconds": time.monotonic() - began}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        do = getattr(hosts, command.pop("do"))
        began = time.monotonic()
        try:
            answer = do(**command)
        except (pw.HostError, RuntimeError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"seconds": time.monotonic() - began, **answer}), flush=True)


if __name__ == "__main__":
    main()

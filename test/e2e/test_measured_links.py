"""Links measured between islands, which policies that go by times use."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways as pw
from pathways.compiler.links import IslandLink, Links
from pathways.passes.schedule.policies.request import read_request


@pytest.fixture
def islands(own_workers):
    pw.connect(cpu_devices=4, islands=2)
    yield
    pw.connect(cpu_devices=8)


@pytest.mark.feature("hosts", "values")
def test_measure_links_measures_each_pair_of_islands(islands):
    links = pw.measure_links()
    ((names, link),) = links.pairs.items()
    assert names == ("island0", "island1")
    assert link.latency >= 0
    assert link.bandwidth > 0
    assert links.table().splitlines()[1].split()[:2] == ["island0", "island1"]
    # The slices used for the measurement are released.
    assert not pw.status().slices


def test_links_give_policies_the_worst():
    pairs = {
        ("a", "b"): IslandLink(20e-3, 1e9),
        ("a", "c"): IslandLink(1e-3, 2e8),
        ("b", "c"): IslandLink(0, 1e9),
    }
    links = Links(pairs)
    assert str(links) == "latency=20000us, bandwidth=200MB/s"
    request = read_request(f"search(times=units, {links})")
    assert (request.latency, request.bandwidth) == ("20000us", "200MB/s")
    assert read_request(f"search(times=units, {Links({})})").latency == "0us"


def test_links_make_search_choose_fewer_hops(tmp_path):
    """1f1b waits for a round trip in each of its iterations; more microbatches in flight hide that."""
    times = tmp_path / "times.json"
    times.write_text(json.dumps({"kinds": {"fwd": "0.1ms", "bwd": "0.1ms"}}))
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice((1,), ("x",)) for _ in range(4)]
    layers = [pw.jit(lambda w, x: jnp.tanh(x @ w), devices=slice) for slice in slices[:-1]]
    last = pw.jit(lambda w, x: jnp.mean((x @ w) ** 2), devices=slices[-1])

    def loss(weights, x):
        for w, fun in zip(weights[:-1], layers, strict=True):
            x = fun(w, x)
        return last(weights[-1], x)

    def step(weights, x):
        return pw.accumulate(jax.value_and_grad(loss), 8)(weights, x)

    links = Links({("island0", "island1"): IslandLink(20e-3, 1e9)})
    arguments = [np.zeros((4, 4), np.float32)] * 4, np.zeros((32, 4), np.float32)
    hops = {}
    for policy in ("1f1b", f"search(times={times}, {links}, seconds=5)"):
        compiled = pw.program(step, schedule=policy).lower(*arguments).compile()
        timeline = compiled.timeline(times, latency="20ms", bandwidth="1GB/s")
        hops[policy.partition("(")[0]] = round(timeline.step_time / links.latency)
    assert hops == {"1f1b": 16, "search": 6}
    for slice in slices:
        pw.release(slice)

"""`pathwaysutils` from the package index, behind the proxy server: the parts that elastic trainers use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

import pathways.proxy
from pathways.proxy import ProxyServer

pytestmark = [pytest.mark.process, pytest.mark.needs("pathwaysutils")]

PRELUDE = """
import pathwaysutils
pathwaysutils.initialize()

import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

x = np.arange(32.0, dtype=np.float32).reshape(8, 4)
slices = [[d for d in jax.devices() if d.slice_index == index] for index in range(2)]

def change(request):
    "Has the test lose or return a slice, and waits until it has."
    print(request, flush=True)
    input()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ProxyServer]:
    """Starts a server of two slices of four devices."""
    with pathways.proxy.serve(tmp_path / "socket", jax.devices("cpu"), islands=2) as server:
        yield server


def run(server: ProxyServer, program: str) -> list[str]:
    """Runs a program, which may change slices by printing `change`; returns its other lines."""
    lines = []
    with subprocess.Popen(
        [sys.executable, "-c", PRELUDE + program],
        env=os.environ | server.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        assert client.stderr is not None
        for line in client.stdout:
            words = line.split()
            if words[0] in ("lose", "return"):
                (server.lose_island if words[0] == "lose" else server.return_island)(int(words[1]))
                print(file=client.stdin, flush=True)
            else:
                lines.append(line.rstrip())
        assert client.wait(60) == 0, client.stderr.read()[-3000:]
    return lines


def test_arrays_are_resharded_split_and_concatenated(server: ProxyServer) -> None:
    program = """
from pathwaysutils.experimental import concatenate_by_mesh_axis, reshard, split_by_mesh_axis
from pathwaysutils import reshard as ifrt_reshard

def show(name, array):
    shards = [(shard.device.id, shard.data.shape) for shard in array.addressable_shards]
    print(name, len(shards), shards[-1], np.array_equal(array, x[: array.shape[0]]))

mesh = Mesh(np.array(slices), ("replica", "data"))
on_first = NamedSharding(Mesh(np.array(slices[0]), ("data",)), P("data"))
on_second = NamedSharding(Mesh(np.array(slices[1]).reshape(2, 2), ("data", "model")), P("model", "data"))

show("reshard", reshard.reshard(jax.device_put(x, on_first), on_second))
show("reshard, donated", reshard.reshard(jax.device_put(x, on_first), on_second, donate=True))
show("reshard by IFRT", ifrt_reshard.reshard(jax.device_put(x, on_first), on_second))
for name, spec in (("a copy for each", P("data")), ("rows", P(("replica", "data")))):
    whole = jax.device_put(x, NamedSharding(mesh, spec))
    halves = split_by_mesh_axis.split_by_mesh_axis(whole, "replica")
    show(f"split, {name}", halves[0])
    show(f"concatenated, {name}", concatenate_by_mesh_axis.concatenate_by_mesh_axis(halves, "replica"))
"""
    assert run(server, program) == [
        "reshard 4 (7, (4, 2)) True",
        "reshard, donated 4 (7, (4, 2)) True",
        "reshard by IFRT 4 (7, (4, 2)) True",
        "split, a copy for each 4 (3, (2, 4)) True",
        "concatenated, a copy for each 8 (7, (2, 4)) True",
        "split, rows 4 (3, (1, 4)) True",
        "concatenated, rows 8 (7, (1, 4)) True",
    ]


def test_a_manager_sees_which_slices_are_connected(server: ProxyServer) -> None:
    """Each check compiles and executes on each slice, also on the lost ones, which answer at once."""
    program = """
import time
from pathwaysutils.elastic import elastic
from pathwaysutils.elastic.manager import Manager

manager = Manager()
print(sorted(manager.active_slice_indices), manager.total_slice_count)
change("lose 0")
began = time.monotonic()
print(sorted(elastic.get_active_slice_indices(manager.slice_to_devices)), time.monotonic() - began < 5)
print(sorted(Manager().active_slice_indices), Manager().default_device.slice_index)
change("return 0")
print(sorted(elastic.wait_for_slices(2, poll_interval=0.1, timeout=30)))
"""
    assert run(server, program) == ["[0, 1] 2", "[1] True", "[1] 1", "[0, 1]"]


def test_training_goes_on_without_a_lost_slice_and_with_it_when_it_returns(server: ProxyServer) -> None:
    """A second thread checks slices that are not in use, while the loop trains on the others."""
    program = """
import time
from pathwaysutils.elastic.manager import Manager, ScaleUpSignalError

manager = Manager()
saved = {"step": 0, "w": np.zeros(4, np.float32)}

@manager.elastic_retry(minimum_slice_count=1, poll_interval=0.2, timeout=60, max_retries=5)
def train():
    devices = np.array([slices[index] for index in sorted(manager.active_slice_indices)])
    mesh = Mesh(devices, ("replica", "data"))
    w = jax.device_put(saved["w"], NamedSharding(mesh, P()))
    batch = jax.device_put(x, NamedSharding(mesh, P(("replica", "data"))))
    loss = jax.jit(jax.value_and_grad(lambda w, batch: ((batch @ w - 1) ** 2).mean()))
    print("from step", saved["step"], "on", len(devices), flush=True)
    for step in range(saved["step"], 12):
        value, slope = loss(w, batch)
        w = w - 1e-4 * slope
        if step == 4 and len(devices) == 2:
            change("lose 1")
        if step == 7 and len(devices) == 1:
            change("return 1")
            deadline = time.monotonic() + 60
            while not manager.available_inactive_slices:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            raise ScaleUpSignalError
        saved.update(step=step + 1, w=np.asarray(w))
    return float(value)

value = train()
w = jnp.zeros(4)
for _ in range(12):
    expected, slope = jax.value_and_grad(lambda w: ((x @ w - 1) ** 2).mean())(w)
    w = w - 1e-4 * slope
print(abs(value - float(expected)) < 1e-5)
"""
    assert run(server, program) == ["from step 0 on 2", "from step 4 on 1", "from step 7 on 2", "True"]


def test_a_slice_that_is_lost_while_its_program_compiles(server: ProxyServer) -> None:
    """The compilation continues; the execution reports the loss."""
    program = """
import threading
started = threading.Event()

def step(w):
    started.set()
    for _ in range(300):
        w = jnp.sin(w) @ w
    return w

def lose():
    started.wait()
    change("lose 1")

threading.Thread(target=lose).start()
w = jax.device_put(np.eye(8, dtype=np.float32), slices[1][0])
try:
    jax.jit(step)(w).block_until_ready()
except jax.errors.JaxRuntimeError as error:
    print(error)
print(float(jax.device_put(1.0, slices[0][0]) + 1))
"""
    assert run(server, program) == ["DATA_LOSS: island1 was lost", "2.0"]

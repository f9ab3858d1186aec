"""Values in the memory of the host, over workers on hosts."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from check import assert_close
from jax.sharding import PartitionSpec as P

import pathways as pw

pytestmark = pytest.mark.usefixtures("own_or_attached_workers")

Space = jax.memory.Space
X = np.arange(16, dtype=np.float32).reshape(8, 2)


def on_host(x: Any) -> jax.Array:
    return jax.device_put(x, Space.Host)


def kinds(tree: Any) -> list[str]:
    return [leaf.sharding.memory_kind or "device" for leaf in jax.tree.leaves(tree)]


def offload(x):
    return jax.device_put(x * 2, Space.Host)


def update(h, momentum):
    return h * 3, jax.device_put(momentum, Space.Device) + 1, momentum + 1


def plain(x, momentum):
    return offload(x), *update(offload(x), momentum)


@pytest.fixture
def program(devices):
    pw.connect(hosts=2, devices_per_host=2)
    first, second = (devices.add_slice((2,), "x") for _ in range(2))
    placed_offload = pw.jit(offload, devices=first, in_shardings=(P("x"),), out_shardings=P("x"))
    placed_update = pw.jit(update, devices=second, in_shardings=(P(), P("x")))

    @pw.program
    def program(x, momentum):
        h = placed_offload(x)
        return h, *placed_update(h, momentum)

    return program


def test_values_stay_in_host_memory_between_hosts_and_calls(program):
    wanted = jax.jit(plain)(X, on_host(X))
    found = program(X, on_host(X))
    assert_close([np.asarray(leaf) for leaf in found], jax.device_get(list(wanted)))
    assert kinds(found) == kinds(wanted) == ["pinned_host", "pinned_host", "device", "pinned_host"]
    placed = program.place(X, on_host(X))
    assert kinds(placed) == ["device", "pinned_host"]
    # One result moves from slice to slice, and none to another memory.
    for momentum in (found[3], found[0], placed[1]):
        assert kinds(program(placed[0], momentum)) == kinds(wanted)
    assert len(program.executables) == 1
    memory = program.executables[0].memory_analysis().values()
    assert [of_slice.host_argument_size_in_bytes for of_slice in memory] == [0, X.nbytes]


def test_a_checkpoint_and_a_bundle_on_hosts_keep_the_memory(program, tmp_path):
    compiled = program.lower(X, on_host(X)).compile()
    compiled.save(tmp_path / "step.pwb")
    momentum = pw.load(tmp_path / "step.pwb", trust=True)(X, on_host(X))[3]
    assert kinds(momentum) == ["pinned_host"]
    pw.checkpoint.save(tmp_path / "saved", {"momentum": momentum}, 0).wait()
    for like in (momentum, compiled.out_info[3]):
        restored = pw.checkpoint.restore(tmp_path / "saved", {"momentum": like})["momentum"]
        assert kinds([restored, compiled(X, restored)[3]]) == ["pinned_host"] * 2
        assert_close(np.asarray(restored), X + 1)


def test_versions_on_hosts_refuse_a_state_in_host_memory_by_its_name(program):
    def step(momentum, x):
        return program(x, momentum)[3], {}

    with (
        pytest.raises(
            ValueError, match=r"pw.resilient: state is in pinned_host memory, but versions on hosts"
        ),
        pw.resilient(step, on_host(X), [X], feeds=(program, "x")) as run,
    ):
        list(run.steps(1))

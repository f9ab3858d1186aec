"""Values in other memory than the default one of devices, such as `jax.memory.Space.Host`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import pathways as pw

Space = jax.memory.Space

X = np.arange(8, dtype=np.float32)
THIS = Path(__file__).name


@pytest.fixture
def s0() -> pw.VirtualSlice:
    return pw.make_virtual_device_set().add_slice(1, "x")


def on_host(x: Any, kind: str = "pinned_host") -> jax.Array:
    return jax.device_put(x, jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind=kind))


def offload(x):
    return jax.device_put(x * 2, Space.Host)


def offload_each(x):
    return jax.lax.scan(lambda carry, row: (carry, jax.device_put(row * 2, Space.Host)), 0, x)[1]


def offload_sharding(x):
    return on_host(x * 2, "unpinned_host")


@pytest.mark.parametrize("function", [offload, offload_each, offload_sharding])
def test_a_value_that_is_put_into_host_memory_is_refused_by_its_line(s0, function):
    program = pw.program(pw.jit(function, devices=s0))
    with pytest.raises(ValueError, match=rf"'{function.__name__}'.*{THIS}:.*put into (un)?pinned_host mem"):
        program(X)


def test_a_residual_that_a_policy_offloads_is_refused_by_the_line_that_computes_it(s0):
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["sine"],
        offload_src="device",
        offload_dst="pinned_host",
    )
    layer = pw.jit(
        jax.checkpoint(lambda x: jnp.sin(checkpoint_name(jnp.sin(x), "sine")), policy=policy), devices=s0
    )
    step = pw.program(jax.grad(lambda x: layer(x).sum()))
    with pytest.raises(ValueError, match=rf"computed at .*{THIS}.*put into pinned_host memory.*policies of"):
        step(X)


@pytest.mark.parametrize("kind", ["pinned_host", "unpinned_host"])
def test_an_argument_in_host_memory_is_refused_by_its_name(s0, kind):
    step = pw.program(pw.jit(lambda state: state["mu"] + 1, devices=s0))
    step({"mu": X})
    with pytest.raises(ValueError, match=rf"argument state\['mu'\] is in {kind} memory"):
        step({"mu": on_host(X, kind)})
    with pytest.raises(ValueError, match=rf"argument state\['mu'\] is in {kind} memory"):
        step.lower({"mu": jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=on_host(X, kind).sharding)})


def test_a_compiled_program_refuses_an_argument_in_other_memory(s0):
    compiled = pw.program(pw.jit(lambda x: x + 1, devices=s0)).lower(X).compile()
    for use in (compiled, compiled.place):
        with pytest.raises(TypeError, match=r"for x of type float32\[8\] in device memory, got .* in pinned"):
            use(on_host(X))

"""Values in other memory than the default one of devices, such as `jax.memory.Space.Host`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check import assert_close
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

import pathways as pw

Space = jax.memory.Space
X = np.arange(16, dtype=np.float32).reshape(8, 2)
THIS = Path(__file__).name


@pytest.fixture
def s0() -> pw.VirtualSlice:
    return pw.make_virtual_device_set().add_slice(1, "x")


def on_host(x: Any, kind: str = "pinned_host") -> jax.Array:
    return jax.device_put(x, jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind=kind))


def kinds(tree: Any) -> list[tuple[str | None, Space]]:
    """Returns the memory that each array is in, and the one that its type says."""
    return [(leaf.sharding.memory_kind, leaf.aval.memory_space) for leaf in jax.tree.leaves(tree)]


def assert_like_jit(program: Callable[..., Any], function: Callable[..., Any], *args: Any) -> None:
    """Asserts that a program gives what `jax.jit` gives, in the same memory, in two calls."""
    wanted = jax.jit(function)(*args)
    for _ in range(2):
        found = program(*args)
        assert_close(jax.device_get(found), jax.device_get(wanted))
        assert kinds(found) == kinds(wanted)


def offload(x):
    return jax.device_put(x * 2, Space.Host)


def offload_rows(x):
    return jax.lax.scan(lambda carry, row: (carry, jax.device_put(row * 2, Space.Host)), 0, x)[1]


def offload_and_use(x):
    return jax.device_put(offload(x), Space.Device) @ x.T


def offload_key(x):
    return jax.random.key_data(jax.device_put(jax.random.key(0), Space.Host)), x


@pytest.mark.parametrize("function", [offload, offload_rows, offload_and_use, offload_key])
def test_results_are_in_the_memory_that_a_placed_function_puts_them_into(s0, function):
    assert_like_jit(pw.program(pw.jit(function, devices=s0)), function, X)


def test_an_argument_in_host_memory_gives_results_there_and_another_executable(s0):
    def update(state):
        return {"mu": state["mu"] + 1}

    step = pw.program(pw.jit(update, devices=s0))
    for kind in ("device", "pinned_host", "unpinned_host", "pinned_host"):
        assert_like_jit(step, update, {"mu": on_host(X, kind)})
    assert len(step.executables) == 3


def test_results_outside_of_placed_functions_and_arguments_that_are_returned(s0):
    def plain(x, state):
        return jax.device_put(x + 1, Space.Host), state, jax.device_put(state, Space.Device)

    placed = pw.jit(lambda x: x + 1, devices=s0)
    program = pw.program(
        lambda x, state: (jax.device_put(placed(x), Space.Host), state, jax.device_put(state, Space.Device))
    )
    for kind in ("pinned_host", "unpinned_host"):
        assert_like_jit(program, plain, X, on_host(X, kind))


def test_a_value_in_host_memory_stays_there_on_its_way_to_other_slices_and_shardings():
    devices = pw.make_virtual_device_set()
    s0, s1 = devices.add_slice((2,), "x"), devices.add_slice((2, 2), ("x", "y"))
    first = pw.jit(offload, devices=s0, in_shardings=(P("x"),), out_shardings=P("x"))
    second = pw.jit(lambda h: h * 3, devices=s1, in_shardings=(P("y", "x"),), out_shardings=P("y", "x"))

    def plain(x):
        return offload(x), offload(x) * 3

    @pw.program
    def program(x):
        h = first(x)
        return h, second(h)

    assert_like_jit(program, plain, X)
    text = program.lower(X).as_text()
    assert text.count('memory_kind = "pinned_host"') > text.count("mhlo.memory_kind")


def policy_that_offloads(name: str) -> Any:
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=[name],
        offload_src="device",
        offload_dst="pinned_host",
    )


def test_residuals_that_a_policy_offloads_are_counted_in_host_memory(s0):
    def layer(w, x):
        return jnp.sin(checkpoint_name(jnp.sin(x @ w), "sine"))

    plain = jax.checkpoint(layer, policy=policy_that_offloads("sine"))
    placed = pw.jit(plain, devices=s0)
    w = np.eye(2, dtype=np.float32)
    step = pw.program(jax.value_and_grad(lambda w, x: placed(w, x).sum()))
    assert_like_jit(step, jax.value_and_grad(lambda w, x: plain(w, x).sum()), w, X)
    memory = step.lower(w, X).compile().memory_analysis()
    (of_slice,) = memory.values()
    assert of_slice.host_peak_memory_in_bytes == X.nbytes
    assert "peak in host memory" in str(memory)
    microbatches = pw.accumulate(jax.value_and_grad(lambda w, x: placed(w, x).sum()), 2)
    accumulated = pw.program(microbatches)(w, X)
    assert_close(jax.device_get(accumulated[1]), jax.device_get(step(w, X)[1]) / 2)


def test_an_optimizer_state_in_host_memory_is_donated_and_counted_there(s0):
    def step(params, momentum, x):
        update = 0.9 * jax.device_put(momentum, Space.Device) + x
        return params - update, jax.device_put(update, Space.Host)

    program = pw.program(pw.jit(step, devices=s0), donate_argnums=(0, 1))
    params, momentum = program.place(X, on_host(X), X)[:2]
    wanted = jax.jit(step)(X, on_host(X), X)
    (memory,) = program.executables[0].memory_analysis().values()
    assert memory.host_argument_size_in_bytes == memory.host_output_size_in_bytes == X.nbytes
    assert memory.host_alias_size_in_bytes == memory.alias_size_in_bytes == X.nbytes
    found = program(params, momentum, X)
    assert momentum.is_deleted()
    assert params.is_deleted()
    assert kinds(found) == kinds(wanted)
    assert_close(jax.device_get(found), jax.device_get(wanted))


def test_a_loop_whose_end_depends_on_values_carries_host_memory_over_slices():
    devices = pw.make_virtual_device_set()
    double = pw.jit(lambda x: x * 2, devices=devices.add_slice(1, "x"))
    increment = pw.jit(lambda x: x + 1, devices=devices.add_slice(1, "x"))

    def loop(body):
        return lambda x: jax.lax.while_loop(lambda x: x.sum() < 1e4, body, x)

    program = pw.program(loop(lambda x: increment(double(x))))
    assert_like_jit(program, loop(lambda x: x * 2 + 1), on_host(X))


def test_place_prefetch_and_compiled_programs_keep_the_memory(s0):
    step = pw.program(pw.jit(lambda x: x + 1, devices=s0))
    (placed,) = step.place(on_host(X))
    (fetched,) = pw.prefetch([on_host(X)], step, "x")
    compiled = step.lower(on_host(X)).compile()
    assert kinds([placed, fetched, compiled(X)]) == kinds([on_host(X)] * 3)
    assert (
        compiled.input_shardings[0][0].memory_kind == compiled.out_info.sharding.memory_kind == "pinned_host"
    )
    with pytest.raises(
        TypeError, match=r"for x of type float32\[8,2\] in pinned_host memory, got .* in device"
    ):
        compiled(jnp.asarray(X))


@pytest.mark.parametrize("zero1", [False, True])
def test_a_state_that_replicas_share_is_in_host_memory(zero1):
    devices = pw.make_virtual_device_set(replicas=2)
    loss = pw.jit(lambda w, x: ((x @ w) ** 2).mean(), devices=devices.add_slice(1, "x"))

    @pw.program(zero1=zero1)
    def step(w, momentum, x):
        _, grad = pw.accumulate(jax.value_and_grad(loss), 2)(w, x)
        update = 0.9 * jax.device_put(momentum, Space.Device) + grad
        return w - update, jax.device_put(update, Space.Host)

    def plain(w, momentum, x):
        grad = jax.grad(lambda w: ((x @ w) ** 2).mean())(w)
        update = 0.9 * jax.device_put(momentum, Space.Device) + grad
        return w - update, jax.device_put(update, Space.Host)

    w = np.eye(2, dtype=np.float32)
    assert_like_jit(step, plain, w, on_host(w), X)
    _, momentum = step(w, on_host(w), X)
    assert momentum.sharding.spec == (P("replica") if zero1 else P())


def test_a_checkpoint_is_restored_into_the_same_memory(s0, tmp_path):
    step = pw.program(pw.jit(lambda x: x + 1, devices=s0))
    state = {"mu": step(on_host(X))}
    pw.checkpoint.save(tmp_path, state, 0).wait()
    compiled = step.lower(on_host(X)).compile()
    for like in (state, {"mu": compiled.out_info}):
        restored = pw.checkpoint.restore(tmp_path, like)
        assert kinds(restored) == kinds(state)
        assert_close(jax.device_get(restored), jax.device_get(state))


def test_a_memory_that_the_types_of_jax_do_not_tell_is_refused_by_its_line(s0):
    program = pw.program(pw.jit(lambda x: on_host(x * 2, "unpinned_host"), devices=s0))
    with pytest.raises(ValueError, match=rf"'lambda'.*{THIS}:.*put into unpinned_host memory, but inside of"):
        program(X)


def test_a_memory_that_devices_lack_is_refused_by_name(s0, monkeypatch):
    monkeypatch.setattr("pathways.compiler.frontend.memory_kinds.memory_kinds", lambda: ("device",))
    step = pw.program(pw.jit(lambda state: state["mu"] + 1, devices=s0))
    with pytest.raises(
        ValueError, match=r"state\['mu'\] is in pinned_host memory, but cpu devices have only d"
    ):
        step({"mu": on_host(X)})
    with pytest.raises(
        ValueError, match=rf"'offload'.*computed at .*{THIS}.* is put into pinned_host memory"
    ):
        pw.program(pw.jit(offload, devices=s0))(X)
    policy = policy_that_offloads("sine")
    layer = pw.jit(
        jax.checkpoint(lambda x: jnp.sin(checkpoint_name(jnp.sin(x), "sine")), policy=policy), devices=s0
    )
    with pytest.raises(ValueError, match=rf"computed at .*{THIS}.* is put into pinned_host memory"):
        pw.program(jax.grad(lambda x: layer(x).sum()))(X)


def test_a_compiled_program_refuses_an_argument_in_other_memory(s0):
    compiled = pw.program(pw.jit(lambda x: x + 1, devices=s0)).lower(X).compile()
    for use in (compiled, compiled.place):
        with pytest.raises(
            TypeError, match=r"for x of type float32\[8,2\] in device memory, got .* in pinned"
        ):
            use(on_host(X))


def test_a_bundle_keeps_the_memory_of_arguments_values_and_results(s0, tmp_path):
    other = pw.make_virtual_device_set().add_slice((2,), "x")
    first = pw.jit(offload, devices=s0)
    second = pw.jit(lambda h, state: (h * 3, state + 1), devices=other, in_shardings=(P("x"), P("x")))

    def plain(x, state):
        return offload(x) * 3, state + 1

    program = pw.program(lambda x, state: second(first(x), state))
    compiled = program.lower(X, on_host(X)).compile()
    compiled.save(tmp_path / "step.pwb")
    loaded = pw.load(tmp_path / "step.pwb", trust=True)
    assert_like_jit(loaded, plain, X, on_host(X))
    assert_close(jax.device_get(loaded(X, X)), jax.device_get(plain(X, X)))
    assert loaded.inputs["state"].memory_space == Space.Host
    assert loaded.memory_analysis() == compiled.memory_analysis()
    with pytest.raises(
        TypeError, match=r"state of type float32\[8,2\] in pinned_host memory, got .* in device"
    ):
        loaded(X, jnp.asarray(X))


@pytest.mark.process
def test_a_bundle_that_is_not_trusted_keeps_the_memory(s0, tmp_path):
    pw.program(pw.jit(offload, devices=s0)).lower(X).save(tmp_path / "step.pwb")
    assert_like_jit(pw.load(tmp_path / "step.pwb"), offload, X)


def test_a_bundle_for_memory_that_devices_lack_is_refused_by_name(s0, tmp_path, monkeypatch):
    pw.program(pw.jit(offload, devices=s0)).lower(X).compile().save(tmp_path / "step.pwb")
    monkeypatch.setattr("pathways.compiler.loaded.memory_kinds", lambda: ("device",))
    with pytest.raises(
        pw.BundleError, match=r"'result' is in pinned_host memory, but cpu devices have only dev"
    ):
        pw.load(tmp_path / "step.pwb")

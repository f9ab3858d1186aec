"""Arrays of programs on hosts are handles, which behave like arrays of JAX."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from check import assert_close, assert_equal
from jax.sharding import PartitionSpec as P
from on_hosts import X, refused

import pathways as pw
from pathways.compiler.backends import backend
from pathways.runtime.clusters.connect import controller
from pathways.runtime.control.records.errors import HostError

pytestmark = pytest.mark.usefixtures("own_or_attached_workers")


@pytest.mark.feature("hosts", "values")
def test_handles_are_read_like_arrays(devices):
    pw.connect(hosts=2)
    double = pw.jit(lambda x: x * 2, devices=devices.add_slice((1,), ("x",)))
    program = pw.program(lambda x: double(x))
    h = program(np.float32([1, 2, 3]))
    assert isinstance(h, pw.Array)
    assert h.block_until_ready() is h
    assert h.is_ready()
    assert (h.shape, h.ndim, h.size, h.nbytes, len(h), h.dtype) == ((3,), 1, 3, 12, 3, np.float32)
    expected = ([3, 5, 7], [-1, -3, -5], 2, 56, [-2, -4, -6])
    assert_equal([h + 1, 1 - h, h[0], h @ h, -h], [np.float32(value) for value in expected])
    assert jax.device_get({"h": h})["h"].tolist() == [2, 4, 6]
    assert jax.eval_shape(lambda x: x + 1, h).shape == (3,)
    assert float(program(2.0)) == 4
    assert f"{program(2.0):.1f}" == "4.0"
    assert bool(program(2.0) > 3)
    large = program(np.zeros(1 << 19, np.float32))
    with refused(TypeError, "would fetch 2097152 bytes", "put this under pw.program"):
        large + 1
    h.delete()
    with refused(RuntimeError, "Array has been deleted"):
        np.asarray(h)


@pytest.mark.feature("hosts", "values")
def test_handles_behave_like_arrays_of_jax(devices):
    pw.connect(hosts=2)
    double = pw.jit(lambda x: x * 2, devices=devices.add_slice((1,), ("x",)))
    program = pw.program(lambda x: double(x))
    h = program(np.float32([1, 2, 3]))
    assert [float(x) for x in h] == [2, 4, 6]
    assert 4 in h
    assert 5 not in h
    first, *_, last = h
    assert (float(first), float(last), [float(x) for x in reversed(h)]) == (2, 6, [6, 4, 2])
    expected = (12, [2, 4, 6], [[2], [4], [6]], [1, 4, 6])
    assert_equal([h.sum(), h.T, h.reshape(3, 1), h.at[0].set(1)], [np.float32(value) for value in expected])
    assert (h.tolist(), h.itemsize, float(round(program(1.26), 1))) == ([2, 4, 6], 4, 2.5)
    expected = ([0, 1, 1], [2, 0, 2], [4, 16, 64])
    assert_equal([*divmod(h, 4), 2**h], [np.float32(value) for value in expected])
    large = program(np.zeros(1 << 19, np.float32))
    assert (h is None, large is None, large is not None, None in [large]) == (False, False, True, False)
    with refused(TypeError, "unhashable"):
        hash(h)
    split = pw.program(pw.jit(jax.random.split, devices=double.devices))
    keys = split(jax.random.key(0))
    for other in (copy.copy(keys), copy.deepcopy(keys), pickle.loads(pickle.dumps(keys))):
        assert isinstance(other, jax.Array)
        assert_equal(jax.random.key_data(other), np.asarray(keys))
    for other in (copy.copy(h), copy.deepcopy(h), pickle.loads(pickle.dumps(h))):
        assert isinstance(other, jax.Array)
        assert other.tolist() == [2, 4, 6]
    h.delete()
    assert other.tolist() == [2, 4, 6]
    weak = program(2.0)
    assert weak.weak_type
    assert (weak + jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16
    with jax.enable_x64(True):
        wide = program(np.float64([1e-12]))
    assert wide.dtype == np.float64
    assert wide.tolist() == [2e-12]
    keys = pw.program(lambda x, key: (double(x), jax.random.split(key)))(1.0, jax.random.key(0))[1]
    assert_equal(jax.random.key_data(keys[1]), jax.random.key_data(jax.random.split(jax.random.key(0))[1]))


@pytest.mark.feature("hosts", "error")
def test_handles_are_refused_by_functions_of_jax(devices):
    """Functions that would compute in this process report where the array is, and what to do."""
    pw.connect(hosts=1)
    place = devices.add_slice((1,), ("x",))
    program = pw.program(pw.jit(lambda key, x: (jax.random.fold_in(key, 1), 2 * x), devices=place))
    key, h = program(jax.random.key(0), np.float32([1, 2, 3]))
    device = jax.devices()[0]
    for use in (
        lambda: jnp.isfinite(h),
        lambda: jnp.stack([h, h]),
        lambda: jnp.where(h, h, 0),
        lambda: jnp.sum(h),
        lambda: jnp.ones(3)[h],
        lambda: jax.lax.sin(h),
        lambda: jax.jit(lambda x: x + 1)(h),
        lambda: jax.jit(lambda: jnp.sin(h))(),
        lambda: jax.jit(lambda: jax.lax.sin(h))(),
        lambda: jax.jit(lambda: h)(),
        lambda: jax.grad(lambda x: (x**2).sum())(h),
        lambda: jax.vmap(jnp.sin)(h),
        lambda: jax.lax.scan(lambda c, x: (c + x, x), 0.0, h),
        lambda: jax.lax.cond(True, lambda x: x, lambda x: -x, h),
        lambda: jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((3,), np.float32), h),
        lambda: jax.debug.print("{}", h),
        lambda: jax.device_put(h),
        lambda: jax.device_put({"h": h}, device),
        lambda: jax.device_put(h, jax.sharding.SingleDeviceSharding(device)),
    ):
        with refused(ValueError, "float32[3] on host 0> is not in this process: np.asarray(x) fetches it"):
            use()
    for use in (jax.random.split, jax.random.normal, jax.random.bits, jax.random.key_data):
        with refused(ValueError, "key<fry>[] on host 0> is not", "wrap_key_data(np.asarray(x)) fetches it"):
            use(key)
    # Types are no values, and these are ways to request a fetch.
    assert jax.eval_shape(lambda k, x: (jax.random.split(k), jnp.sin(x)), key, h)[0].shape == (2,)
    assert_equal(optax.adam(1e-3).init({"h": h})[0].mu, {"h": np.zeros(3, np.float32)})
    assert jax.make_jaxpr(jnp.sin)(h).in_avals == [h.aval]
    expected = np.float32([2, 4, 6])
    fetched = [jnp.asarray(h), jnp.array(h), jnp.array([h, h])[1], jax.device_get(h), jnp.ones(3) * h]
    assert_equal(fetched, [expected] * 5)
    again = jax.random.wrap_key_data(np.asarray(key))
    assert_equal(jax.random.key_data(again), jax.random.key_data(jax.random.fold_in(jax.random.key(0), 1)))
    assert not hasattr(h, "__jax_array__")
    h.delete()
    with refused(RuntimeError, "Array has been deleted"):
        jnp.isfinite(h)


@pytest.mark.feature("hosts", "values")
def test_handles_are_constants_of_programs_that_close_over_them(devices):
    """Arrays of JAX are constants of such programs, too."""
    pw.connect(hosts=2)
    a, b = (pw.jit(jnp.matmul, devices=devices.add_slice((1,), ("x",))) for _ in range(2))
    inner = pw.program(lambda w, x: b(w, a(x, w)))
    w = np.float32([[1, 2], [3, 4]])
    h = inner(w, w)
    assert_equal(h, w @ w @ w)
    noise = pw.jit(lambda key, x: x + jax.random.normal(key, x.shape), devices=a.devices)
    key = pw.program(pw.jit(lambda key: jax.random.fold_in(key, 1), devices=a.devices))(jax.random.key(0))

    weakly_typed = jnp.broadcast_to(3.0, (2, 2))
    weak = pw.program(pw.jit(lambda x: x * 2, devices=a.devices))(weakly_typed)

    def uses(h, key, weak):
        return {
            "placed": pw.program(lambda x: a(h, x) + x @ h),
            "program": pw.program(lambda x: inner(h, x)),
            "scan": pw.program(lambda x: jax.lax.scan(lambda c, _: (a(h, c), None), x, None, length=2)[0]),
            "loop": pw.program(lambda x: pw.accumulate(lambda w, x: a(x, w), 2, reduce="concat")(h, x)),
            "keys": pw.program(lambda x: noise(key, x)),
            "weak": pw.program(lambda x: a(weak, x.astype(jnp.bfloat16)) * weak[0, 0]),
        }

    here = uses(jnp.asarray(h), jax.random.wrap_key_data(np.asarray(key)), 2 * weakly_typed)
    for name, program in uses(h, key, weak).items():
        assert_equal(program(w), here[name](w))
    large = pw.program(pw.jit(lambda: jnp.ones((1024, 512)), devices=a.devices))()
    for name, use in {
        f"'matmul', placed on {a.devices.name},": lambda x: a(x, large),
        "program 'lambda'": lambda x: inner(large, x),
        "pw.accumulate of 'matmul'": lambda x: pw.accumulate(a, 2)(large, x),
    }.items():
        with refused(ValueError, f"{name} gets", "of 2097152 bytes", "make it an argument of the program"):
            pw.program(use)(w)


@pytest.mark.feature("hosts", "values")
def test_handles_are_deleted_when_donated(devices):
    pw.connect(hosts=2)
    f = pw.jit(lambda x, y: x + y, devices=devices.add_slice((1,), ("x",)))
    program = pw.program(lambda x, y: f(x, y), donate_argnums=0)
    x, y = jnp.ones(2), jnp.ones(2)
    with refused(ValueError, "arguments x and y are the same array, and one of them is donated"):
        program(x, x)
    assert_equal(program(x, y), np.float32([2, 2]))
    assert x.is_deleted()
    assert not y.is_deleted()
    with refused(RuntimeError, "argument x has been deleted"):
        program(x, y)


@pytest.mark.feature("hosts", "values")
@pytest.mark.parametrize("hosts", [1, 2])
def test_handles_outlive_their_originals(devices, hosts):
    """A learner donates its weights while the actor keeps the earlier ones; also on one device for both."""
    pw.connect(hosts=hosts)
    learner, actor = (devices.add_slice((1,), ("x",), overlap=hosts == 1) for _ in range(2))
    learn = pw.program(pw.jit(lambda w: w + 1, devices=learner), donate_argnums=0)
    act = pw.program(pw.jit(lambda w, x: w * x, devices=actor))
    w = pw.program(pw.jit(lambda: jnp.ones(4), devices=learner))()
    kept, x = act.place(w, np.float32(2))
    for step in range(3):
        w = learn(w)
        assert_equal((act(kept, x), w), (np.float32([2] * 4), np.float32([step + 2] * 4)))
    if hosts > 1:
        assert act.place(kept, x)[0] is kept


@pytest.mark.feature("hosts", "values")
def test_handles_of_a_tree_are_fetched_together(devices, own_workers, monkeypatch):
    """All arrays are fetched in one round trip."""
    pw.connect(hosts=2)
    a, b = (pw.jit(lambda x: x * 2, devices=devices.add_slice((1,), ("x",))) for _ in range(2))
    program = pw.program(lambda x: (a(x), b(x), a(x + 1)))
    tree = program(np.float32([1, 2]))
    seen = []
    here = controller()

    def note(name, do):
        def noted(*args):
            seen.append(name)
            return do(*args)

        monkeypatch.setattr(here, name, noted)

    note("request_bytes", here.request_bytes)
    note("fetch", here.fetch)
    assert_equal(jax.device_get(tree), tuple(np.float32([[2, 4], [2, 4], [4, 6]])))
    assert seen == ["request_bytes"] * 3 + ["fetch"] * 3
    # Checking again, or reading it, sends no request to hosts.
    tree[0].copy_to_host_async()
    np.asarray(tree[0])
    assert len(seen) == 6
    other = program(np.float32([1, 2]))[0]
    other.copy_to_host_async()
    other.copy_to_host_async()
    other.delete()
    with refused(RuntimeError, "Array has been deleted"):
        other.copy_to_host_async()
    assert seen[6:] == ["request_bytes"]
    # The read of an array raises the error of its step.
    last = program(np.float32([1, 2]))[1]
    os.kill(controller().hosts[1].process.pid, signal.SIGKILL)
    last.copy_to_host_async()
    with refused(HostError, "host 1"):
        np.asarray(last)


def test_handles_of_different_meshes_have_types_that_combine(devices):
    pw.connect(hosts=2, devices_per_host=2)
    a = pw.jit(lambda x: x + 1, devices=devices.add_slice((2,), ("x",)), out_shardings=P("x"))
    b = pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("y",)))
    x, y = pw.program(lambda v: (a(v), b(v)))(np.zeros(4, np.float32))
    assert x.sharding.shard_shape(x.shape) == (2,)
    assert jax.eval_shape(lambda x, y: x + y, x, y).shape == (4,)


@pytest.mark.feature("hosts", "error")
def test_handles_of_earlier_workers(devices, own_workers):
    """Ids of arrays start again: a handle must not be mistaken for an array of the new workers."""
    pw.connect(hosts=1)
    slice = devices.add_slice((1,), ("x",))
    program = pw.program(pw.jit(lambda x: x + 1, devices=slice))
    lost, kept = program(np.float32(10)), program(np.float32(20))
    assert float(kept) == 21
    pw.release(slice)
    pw.connect(hosts=1, devices_per_host=2)
    [program(np.float32(n)) for n in range(5)]
    with refused(HostError, "host 0 (island0) is closed"):
        program(lost)
    assert float(program(kept)) == 22


@pytest.mark.feature("hosts", "values")
def test_handles_go_from_host_to_host(devices, own_workers, monkeypatch):
    """An array that a program on a second host reads never passes through the controller."""
    pw.connect(hosts=3, devices_per_host=2)
    s0 = devices.add_slice((2,), ("x",), island="island0")
    s1 = devices.add_slice((1, 2), ("u", "v"), island="island1")
    s2 = devices.add_slice((1,), ("x",), island="island2")

    def make():
        return jax.random.key(3), X * 2, jnp.ones(3, jnp.bfloat16), jnp.array([True, False])

    def use(key, x, ones, flags):
        return jax.random.normal(key, (4,)) + x, ones * 2, ~flags

    make_it = pw.program(pw.jit(make, devices=s0, out_shardings=(None, P("x"), None, None)))
    users = [
        pw.program(pw.jit(use, devices=s1, in_shardings=(None, P("v"), None, None))),
        pw.program(pw.jit(use, devices=s2)),
    ]
    expected = jax.jit(use)(*make())
    here = controller()
    with monkeypatch.context() as patch:
        # Neither fetched nor sent by the controller.
        patch.setattr(here, "put", None)
        patch.setattr(here, "request_bytes", None)
        state = make_it()
        results = [user(*state) for user in users]
        assert state[1].hosts == (0, 1, 2)
        state[1].block_until_ready()
    for result in results:
        assert_close(result, expected, 1e-5)

    # A copy is freed with its handle; an array that another program was donated is deleted everywhere.
    taker = pw.program(pw.jit(lambda x: x + 1, devices=s2), donate_argnums=0)
    assert_equal(taker(state[1]), X * 2 + 1)
    assert state[1].is_deleted()

    # The host that has it dies before it can be moved.
    state = make_it()
    jax.block_until_ready(state)
    os.kill(here.hosts[0].process.pid, signal.SIGKILL)
    with refused(HostError, "host 0 (island0)"):
        jax.block_until_ready(users[1](*state))


@pytest.mark.feature("hosts", "values")
def test_disconnect_moves_programs_to_other_devices(devices, own_workers):
    pw.connect(hosts=2)
    a, b = (pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",))) for _ in range(2))
    program = pw.program(lambda x: b(a(x)))
    # Done: else the step is lost with the first host that closes.
    lost = program(np.float32(0)).block_until_ready()
    assert float(lost) == 2
    pids = [host.pid for host in pw.status().hosts]
    pw.disconnect()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    with refused(HostError, "host 1 (island1) is closed"):
        lost.block_until_ready()
    pw.connect(cpu_devices=2)
    assert isinstance(program(np.float32(0)), jax.Array)
    assert float(program(np.float32(1))) == 3
    pw.disconnect()
    pw.connect(hosts=3)
    assert isinstance(program(np.float32(0)), pw.Array)
    assert float(program(np.float32(2))) == 4


def test_program_without_placed_calls_runs_where_handles_live(devices):
    pw.connect(hosts=2)
    double, triple = (pw.jit(lambda x, n=n: x * n, devices=devices.add_slice((1,), ("x",))) for n in (2, 3))
    a, b = double(X), triple(X)
    half = pw.program(lambda tree: [x.astype(jnp.bfloat16).T for x in tree])
    cast = half([a, b])
    assert_close(cast, [(X * n).astype(jnp.bfloat16).T for n in (2, 3)])
    assert [x.hosts for x in cast] == [a.hosts, b.hosts]
    assert [x.hosts for x in half([b, a])] == [b.hosts, a.hosts]
    assert pw.program(lambda x, y: (x + y).T)(X, b).hosts == b.hosts
    with pytest.raises(pw.ProgramError, match="no argument lives on a slice"):
        half([X, X])


def test_handles_of_programs_under_debug_nans_warn_once_that_nothing_is_checked(devices):
    pw.connect(hosts=1)
    backend._warn_of_unchecked_values.cache_clear()
    log = pw.program(pw.jit(jnp.log, devices=devices.add_slice((1,), ("x",))))
    assert np.isnan(log(-1.0))
    with jax.debug_nans(True):
        with pytest.warns(
            pw.PathwaysWarning, match="jax_debug_nans and jax_debug_infs check no value on hosts"
        ):
            assert np.isnan(np.asarray(log(-1.0)))
        # A warning would be an error here.
        log(np.float32([-1]))


def test_handles_are_freed_when_an_interrupt_comes_as_they_are_collected(devices):
    pw.connect(hosts=1)
    double = pw.jit(lambda x: x * 2, devices=devices.add_slice((1,), ("x",)))
    h = double(np.float32([1, 2, 3]))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    sys.settrace(interrupt)
    try:
        del h
    finally:
        sys.settrace(None)
    # The fixture that lends workers fails when arrays of a test are left on them.

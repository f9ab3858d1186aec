"""Islands of several hosts: programs return the values of one process, and never a wrong one."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import resource
import signal
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from cable import Cable
from check import assert_close, assert_equal
from inside import core_of
from jax.sharding import PartitionSpec as P
from on_hosts import W, X, back, front, refused, training

import pathways as pw
from pathways.runtime.clusters.connect import controller
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.control.records.events import HostLost

pytestmark = pytest.mark.usefixtures("own_or_attached_workers")


def connected(devices):
    """Returns a slice over the two hosts of an island, and one on an island of one host."""
    islands = [pw.Island(hosts=2, devices_per_host=2), pw.Island(devices_per_host=2)]
    pw.connect(islands=islands, options=pw.HostOptions(heartbeat=2, ahead=9))
    return devices.add_slice((4,), ("x",), island="island0"), devices.add_slice(
        (2,), ("x",), island="island1"
    )


def pids():
    return [host.process.pid for host in controller().hosts]


def lost(act):
    with refused(HostError, "is lost"):
        np.asarray(act())


@pytest.mark.feature("hosts", "hosts")
def test_islands_of_unlike_hosts_train(devices):
    """Slices over both hosts of an island, gradients, donation, and values that are split on the way."""
    wide, narrow = connected(devices)
    a = pw.jit(front, devices=wide, in_shardings=(None, P("x")))
    b = pw.jit(back, devices=narrow, in_shardings=(None, P("x")))

    program, jitted = pw.program(training(a, b), donate_argnums=0), jax.jit(training(front, back))
    ours = theirs = (W, W + 1)
    for _ in range(5):
        ours, value = program(ours, X)
        theirs, expected = jitted(theirs, X)
        assert_close((ours, value), (theirs, expected), 1e-5)
    assert [w.hosts for w in ours] == [(0, 1), (2,)]
    memory = program.lower(ours, X).compile().memory_analysis()
    assert [of_slice.devices for of_slice in memory.values()] == [4, 2]
    del ours, value
    while any(host.arrays for host in pw.status().hosts):
        time.sleep(0.05)


def test_islands_have_slices_of_single_hosts(devices):
    """Arrays go from one host to another of the same island as they do between islands."""
    pw.connect(islands=[pw.Island(hosts=2, devices_per_host=2)])
    table = np.arange(512, dtype=np.float32).reshape(128, 4)[:4]
    single = [devices.add_slice((1,), ("x",)) for _ in range(4)]
    functions = [pw.jit(lambda x, k=k: x @ table / 100 + k, devices=slice) for k, slice in enumerate(single)]

    def chain(functions):
        def call(x):
            for function in functions:
                x = function(x)
            return x, functions[0](x)

        return call

    ours = pw.program(chain(functions))(X)
    theirs = jax.jit(chain([lambda x, k=k: x @ table / 100 + k for k in range(4)]))(X)
    assert_close(ours, theirs, 1e-5)
    assert [y.hosts for y in ours] == [(1,), (0,)]
    for slice in single:
        pw.release(slice)
    square, _row = devices.add_slice((2, 2), ("x", "y")), devices.add_slice((2,), ("x",), overlap=True)
    a = pw.jit(front, devices=square, in_shardings=(None, P("y", "x")))
    split = pw.jit(jax.random.split, devices=square)
    for value in (X, np.zeros((0, 4), np.float32)):
        assert_close(pw.program(lambda w, x: a(w, a(w, x)))(W, value), front(W, front(W, value)), 1e-5)
    keys = pw.program(lambda key: split(key))(jax.random.key(3))
    assert_equal(jax.random.key_data(keys[1]), jax.random.key_data(jax.random.split(jax.random.key(3))[1]))


@pytest.mark.feature("hosts", "hosts")
def test_islands_have_copies_of_values_on_all_hosts(devices):
    """Results that the caller keeps, returns twice, or sends on are copied on each host."""
    pw.connect(islands=[pw.Island(hosts=2, devices_per_host=2), pw.Island(hosts=2)])
    left, right = (devices.add_slice((2,), ("x",), overlap=True, island="island0") for _ in range(2))
    wide, far = devices.add_slice((4,), ("y",), island="island0"), devices.add_slice((2,), ("x",))
    a, b, c, d = (
        pw.jit(
            lambda x, k=k: x * 2 + k + jnp.sum(x), devices=slice, in_shardings=P(axis), out_shardings=P(axis)
        )
        for k, (slice, axis) in enumerate(((left, "x"), (right, "x"), (wide, "y"), (far, "x")))
    )
    functions = [lambda x, k=k: x * 2 + k + jnp.sum(x) for k in range(4)]

    def mixed(a, b, c, d):
        def call(x, y):
            z = c(y)
            return x, y, y, z, z, d(z), d(y), c(d(z)) + z

        return call

    def crossing(a, b, c, d):
        return lambda x: (b(a(x)), a(b(a(x))), d(b(x)), x)

    value = np.arange(8, dtype=np.float32)
    program = pw.program(mixed(a, b, c, d), donate_argnums=0)
    y = program(value, value)[3]
    for _ in range(3):
        expected = jax.jit(mixed(*functions))(np.asarray(y), np.asarray(y))
        results = program(y + 0, y)
        assert_close(results, expected, 1e-5)
        y = results[3]
        results[4].delete()
    for slice in (wide, left, right):
        pw.release(slice)
    assert_equal(pw.program(crossing(a, b, None, d))(value), jax.jit(crossing(*functions))(value))


def test_islands_report_a_launch_that_fails_on_one_host(devices, own_workers):
    """The other host mistakes the first's next launch for this one: its results must not be visible."""
    wide, narrow = connected(devices)

    def placed(fun):
        return pw.jit(fun, devices=wide, in_shardings=P("x"), out_shardings=P("x"))

    def large(x):
        return x + jnp.sum(x) + jnp.sort(jax.lax.iota(jnp.float32, 1 << 26) * x[0])[5]

    def slow(x):
        return jax.lax.fori_loop(0, 200, lambda n, v: v + jnp.sum(jnp.sin(v)) * 1e-9, jnp.repeat(x, 1 << 16))[
            :8
        ]

    add, double = placed(lambda x: x + jnp.sum(x)), pw.jit(lambda x: x * 2, devices=narrow)
    light, far = pw.program(lambda x: add(x)), pw.program(lambda x: double(add(x)))
    value = np.arange(8, dtype=np.float32)
    assert_equal((light(value), far(value)), (value + 28, 2 * value + 56))
    kept = light(value).block_until_ready()
    heavy, before_it = (pw.program(placed(fun)).lower(value).compile() for fun in (large, slow))
    used = int(Path(f"/proc/{pids()[1]}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(pids()[1], resource.RLIMIT_AS, (used + (1 << 27),) * 2)
    before = pids()
    began = time.monotonic()
    later = [
        before_it(value),
        heavy(value),
        *(program(value + n) for n in range(3) for program in (light, far)),
    ]
    issued = time.monotonic() - began
    for array in later[1:]:
        with refused(HostError, "host 1 (island0) is lost: step", "program large failed there"):
            print(np.asarray(array), issued)
        lost(array.block_until_ready)
    lost(lambda: kept)
    lost(lambda: double(later[-1]))
    assert_equal((light(value), far(value)), (value + 28, 2 * value + 56))
    assert len({*pids(), *before}) == 5, (before, pids())


def test_islands_are_lost_with_a_killed_or_stopped_host(devices, own_workers):
    """The island ends as a whole and comes back; the same programs run again, and no array is left."""
    wide, narrow = connected(devices)
    a = pw.jit(lambda x: x + jnp.sum(x), devices=wide, in_shardings=P("x"))
    b = pw.jit(lambda x: x * 2, devices=narrow)
    program = pw.program(lambda x: b(a(b(x))))
    value = np.arange(8, dtype=np.float32)
    expected = 2 * (2 * value + 56)
    assert_equal(program(value), expected)
    for victim, signals in itertools.product((0, 1, 2), (signal.SIGKILL, signal.SIGSTOP)):
        before = pids()
        kept = pw.program(lambda x: b(x))(value)
        assert_equal(kept, 2 * value)
        running = [program(value) for _ in range(3)]
        os.kill(before[victim], signals)
        began = time.monotonic()
        # A call may wait for new workers, and find all whole again.
        while controller().is_whole() and pids() == before:
            if time.monotonic() - began > 10:
                raise AssertionError("nobody noticed")
            with contextlib.suppress(HostError):
                program(value).block_until_ready()
        errors = []
        for array in running:
            try:
                np.testing.assert_array_equal(np.asarray(array), expected)
            except HostError as error:
                errors.append(str(error))
        assert all("is lost" in error for error in errors), errors
        assert_equal(program(value), expected)
        now = pids()
        # The other island has lost a value, and lives.
        new = {host for host in range(3) if now[host] != before[host]}
        assert new == ({0, 1} if victim < 2 else {2})
        assert not any(Path(f"/proc/{pid}").exists() for pid in {*before} - {*now})
        if victim < 2:
            assert_equal(kept, 2 * value)


@pytest.mark.parametrize("donates", [True, False], ids=["donated", "loop"])
def test_islands_take_over_state_that_is_being_waited_for(devices, own_workers, donates):
    """A step is donated the results of the step before, device by device, while the worker waits for them."""
    pw.connect(islands=[pw.Island(hosts=2, devices_per_host=4) for _ in range(2)])
    a, b = (pw.jit(lambda x, k=k: (x * k + 1) % 97, devices=devices.add_slice((8,), ("x",))) for k in (3, 5))
    ones = np.ones((8, 4), np.int32)
    if donates:
        step = pw.program(lambda x, y: (a(x), b(y)), donate_argnums=(0, 1))
        x, y, expected = ones, ones, 1
        for _ in range(400):
            x, y = step(x, y)
            expected = (expected * 5 + 1) % 97
    else:

        def repeated(x, count):
            return jax.lax.while_loop(lambda s: s[0] < count, lambda s: (s[0] + 1, b(a(s[1]))), (0, x))[1]

        loop = pw.program(repeated, chunk=2)
        y = [loop(ones, count % 5) for count in range(40)][-1]
        expected = 1
        for _ in range(4):
            expected = ((expected * 3 + 1) % 97 * 5 + 1) % 97
    assert_equal(y, np.full((8, 4), expected, np.int32))


def test_islands_notice_a_cut_between_two_hosts(devices, own_workers):
    """Both answer the controller, and neither learns that the other one is lost."""
    pw.connect(hosts=3, options=pw.HostOptions(heartbeat=2))
    cables = []
    for host in controller().hosts[:2]:
        data, probe = Cable(host.ready.data_address), Cable(host.ready.probe_address)
        host.ready = msgspec.structs.replace(
            host.ready, data_address=data.address, probe_address=probe.address
        )
        cables += [data, probe]
    a, b, c = (pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",))) for _ in range(3))
    program, other = pw.program(lambda x: b(a(x))), pw.program(lambda x: c(b(x)))
    assert float(program(1.0)) == 3
    kept = other(1.0).block_until_ready()
    before = [host.pid for host in pw.status().hosts]
    for cable in cables:
        cable.cut = True
    lost = [program(float(n)) for n in range(3)]
    for array in lost:
        with refused(HostError, "host 0 (island0)", "reach"):
            array.block_until_ready()
    # Steps that wait for both are errors before it is decided which of them ends: here both.
    while {*before[:2]} & {host.pid for host in pw.status().hosts}:
        time.sleep(0.05)
    assert [host.pid for host in pw.status().hosts][2] == before[2]
    assert float(kept) == 3
    assert float(other(2.0)) == 4
    assert float(program(2.0)) == 4
    del lost, array, kept
    while [host.arrays for host in pw.status().hosts] != [0, 0, 0]:
        time.sleep(0.05)
    assert not pw.status().steps


def test_islands_report_a_step_that_begins_while_a_host_is_lost(devices, own_workers):
    """The loss is known, and the connection still accepts messages: no host would answer for the step."""
    pw.connect(hosts=1)
    program = pw.program(pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), ("x",))))
    assert float(program(1.0)) == 2
    workers, is_known, is_issued = controller(), threading.Event(), threading.Event()
    core = core_of(workers)

    class Slow(logging.Handler):
        def emit(self, record):
            is_known.set()
            is_issued.wait(10)

    def lose_first(*step, run=core.run):
        core.run = run
        lost = HostLost(workers.hosts[0].gang.life.key, 0, "of a test")
        threading.Thread(target=core.handle, args=(lost,)).start()
        assert is_known.wait(10)
        return run(*step)

    (placed,) = program.place(np.float32(3))
    os.kill(workers.hosts[0].process.pid, signal.SIGSTOP)
    slow = Slow()
    logging.getLogger("pathways").addHandler(slow)
    core.run = lose_first
    with refused(HostError, "host 0 (island0) is lost: of a test"):
        value = program(placed)
        is_issued.set()
        value.block_until_ready()
    is_issued.set()
    logging.getLogger("pathways").removeHandler(slow)
    assert float(program(2.0)) == 3

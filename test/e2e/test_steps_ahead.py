"""Number of steps of a program in flight on hosts: as many as memory allows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check import assert_close
from jax.sharding import PartitionSpec as P

import pathways as pw
from pathways.runtime.control.records.window import Window
from pathways.runtime.hosts.splitting import ahead

pytestmark = pytest.mark.usefixtures("shared_workers")


def test_ahead_keeps_as_many_steps_in_flight_as_fit(devices, monkeypatch):
    """The default is kept; a program that sends nothing between hosts has many steps ahead."""

    def allowed(program, argument):
        before = step_shares[:]
        np.asarray(program(argument))
        (share,) = set(step_shares[len(before) :])
        return window_sizes[0] // share

    step_shares, window_sizes = [], []
    add = Window.add

    def noted(self, step):
        step_shares.append(step.share)
        window_sizes[:] = [self._limit]
        add(self, step)

    monkeypatch.setattr(Window, "add", noted)
    small, large = np.zeros(4, np.float32), np.zeros(1 << 23, np.float32)
    slices = [devices.add_slice((1,), ("x",)) for _ in range(2)]
    a, b = (pw.jit(lambda x: x + 1, devices=slice) for slice in slices)

    def programs():
        return pw.program(lambda x: a(x)), pw.program(lambda x: b(a(x)))

    for options, expected in ((pw.HostOptions(), [256, 5, 16, 9]), (pw.HostOptions(ahead=3), [3] * 4)):
        pw.connect(hosts=2, options=options)
        # Each further step occupies its argument and result, or the values sent, of 256 MiB by default.
        assert [allowed(program, x) for program in programs() for x in (small, large)] == expected
        if options.ahead == "auto":
            # One step has 32 bytes on each slice, and each further one 16 that are sent.
            for memory, most in ((80, 4), (32, 1)):
                monkeypatch.setattr(ahead, "_memory", lambda binding, memory=memory: memory)
                assert allowed(programs()[1], small) == most
        for slice in slices:
            pw.release(slice)


@pytest.mark.parametrize("schedule", ["gpipe", "zb-h1", "1f1b"])
def test_ahead_has_collectives_of_several_devices_meet(devices, schedule):
    """More launches than a device queues are issued before the first can run: no host waits for ever."""
    pw.connect(hosts=2, devices_per_host=2, options=pw.HostOptions(step_deadline=60))
    specs = P("x"), P(None, "x")

    def reduced(w, x):
        return jnp.tanh(jax.lax.psum(x @ w, "x"))

    def layer(w, x):
        return jax.shard_map(reduced, in_specs=specs, out_specs=P())(w, x)

    slices = [devices.add_slice((2,), ("x",)) for _ in range(2)]
    first, second = (pw.jit(layer, devices=slice, in_shardings=specs) for slice in slices)

    def loss(ws, x):
        return (second(ws[1], first(ws[0], x)) ** 2).mean()

    def plain(ws, x):
        return (jnp.tanh(jnp.tanh(x @ ws[0]) @ ws[1]) ** 2).mean()

    ws, x = [np.eye(8, dtype=np.float32)] * 2, np.ones((32, 8), np.float32)
    step = pw.program(lambda ws, x: pw.accumulate(jax.value_and_grad(loss), 16)(ws, x), schedule=schedule)
    results = [step(ws, x) for _ in range(40)]
    assert_close(results[-1], jax.value_and_grad(plain)(ws, x), 1e-5)

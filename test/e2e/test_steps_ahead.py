"""Number of steps of a program in flight on hosts: as many as memory allows."""

from __future__ import annotations

import numpy as np
import pytest

import pathways as pw
from pathways.runtime.control.window import Window
from pathways.runtime.hosts.splitting import ahead

pytestmark = pytest.mark.usefixtures("shared_workers")


def test_ahead_keeps_as_many_steps_in_flight_as_fit(devices, monkeypatch):
    """The default; a program that sends nothing between hosts has many."""

    def allowed(program, argument):
        before = step_shares[:]
        np.asarray(program(argument))
        (share,) = set(step_shares[len(before) :])
        return window_sizes[0] // share

    step_shares, window_sizes = [], []
    add = Window.add

    def noted(self, step):
        step_shares.append(step.share)
        window_sizes[:] = [self._most]
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

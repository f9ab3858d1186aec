"""Exchanges of blocks between slices of different hosts."""

from __future__ import annotations

import os
import signal
from typing import Any

import jax
import numpy as np
import pytest
from check import assert_close
from models import gradients_of, mixture_of_experts, place_on
from on_hosts import refused
from test_all_to_all import arrays, exchanged, inputs, loss_of

import pathways as pw
from pathways.runtime.clusters.connect import controller
from pathways.runtime.control.records.errors import HostError


def placed_and_plain(devices: pw.VirtualDeviceSet) -> tuple[Any, Any]:
    """Returns the losses of three experts: two of them on one of two hosts, and without slices."""
    slices = [devices.add_slice((1,), ("x",), island=f"island{n}") for n in (0, 1, 1)]
    return loss_of(mixture_of_experts(slices, pw.all_to_all)), loss_of(mixture_of_experts(3, exchanged))


@pytest.mark.feature("experts", "hosts")
@pytest.mark.usefixtures("own_or_attached_workers")
def test_experts_on_hosts_train_as_in_jax(devices):
    pw.connect(hosts=2, devices_per_host=2)
    loss, plain = placed_and_plain(devices)
    params, x = inputs(3, 12)
    expected = jax.jit(gradients_of(plain, 2))(params, x)
    step = pw.program(gradients_of(loss, 2), schedule="1f1b")
    for _ in range(3):
        assert_close(step(params, x), expected, 1e-5)


@pytest.mark.usefixtures("own_or_attached_workers")
def test_counts_on_hosts(devices):
    """Rows after the count arrive as zeros, whichever counts a step has."""
    pw.connect(hosts=2, devices_per_host=1)
    slices = [devices.add_slice((1,), ("x",), island=f"island{n}") for n in (0, 1)]
    ones = place_on(slices, jax.numpy.sin)

    @pw.program
    def step(blocks, counts):
        return pw.all_to_all([one(b) for one, b in zip(ones, blocks, strict=True)], counts=counts)

    blocks = arrays(2, 2, 16, 8)
    for rows in ([[0, 16], [5, 99]], [[-1, 0], [1, 15]]):
        counts = [np.array(row, np.int32) for row in rows]
        rows_sent = [jax.numpy.sin(block) for block in blocks]
        assert_close(step(blocks, counts), pw.all_to_all(rows_sent, counts=counts), 1e-6)


@pytest.mark.usefixtures("own_workers")
def test_a_receiver_is_killed_in_an_exchange(devices):
    """The other host has sent its blocks and waits for those of the lost one: an error, and no hang."""
    pw.connect(hosts=2, devices_per_host=2)
    loss, plain = placed_and_plain(devices)
    params, x = inputs(3, 12)
    expected = jax.jit(jax.value_and_grad(plain))(params, x)
    step = pw.program(jax.value_and_grad(loss))
    assert_close(step(params, x), expected, 1e-5)
    receiver = controller().hosts[1].process.pid
    os.kill(receiver, signal.SIGSTOP)
    value, _ = step(params, x)
    os.kill(receiver, signal.SIGKILL)
    with refused(HostError, "host 1 (island1) is lost"):
        np.asarray(value)
    assert_close(step(params, x), expected, 1e-5)

"""Devices of slices of all clients, which those have that are there."""

from __future__ import annotations

from pathways.runtime.hosts.protocol.service_messages import RequestDevices, SliceRequest
from pathways.runtime.hosts.service.bound_slices import BoundSlices
from pathways.runtime.hosts.service.served_client import ServedClient
from pathways.runtime.plan.plan import SliceSpec
from pathways.runtime.resources import cluster


def test_bound_slices_give_nothing_to_a_client_that_left():
    """It may have asked just before: its thread goes on for a moment."""
    devices = tuple(cluster.Device(n, n, "cpu", cluster.Host(0), "island0", None) for n in range(2))
    slices = BoundSlices(cluster.Cluster((cluster.DeviceIsland("island0", devices),)))
    ann, bob = ServedClient(1, "ann", 1.0, None), ServedClient(2, "bob", 1.0, None)
    asked = RequestDevices(5, "f", (SliceRequest(1, SliceSpec("s0", ("x",), (1,)), None, 0, 1, 1),))
    bob.disconnected.set()
    slices.forget(bob)
    bound = slices.bind(bob, asked)
    assert (bound.request, bound.positions, bound.error) == (5, {}, "client bob has left")
    assert not slices._slices
    assert slices.bind(ann, asked).positions == {1: (0,)}

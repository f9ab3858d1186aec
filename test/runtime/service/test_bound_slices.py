"""Binding of the slices of connected clients to devices."""

from __future__ import annotations

from pathways.runtime.plan.plan import SliceSpec
from pathways.runtime.resources import cluster
from pathways.runtime.service.bound_slices import BoundSlices
from pathways.runtime.service.protocol.service_messages import RequestDevices, SliceRequest
from pathways.runtime.service.served_client import ServedClient


def test_bound_slices_bind_no_devices_of_a_disconnected_client():
    """The thread of its requests may handle one after it has disconnected."""
    devices = tuple(cluster.Device(n, n, "cpu", cluster.Host(0), "island0", None) for n in range(2))
    slices = BoundSlices(cluster.Cluster((cluster.DeviceIsland("island0", devices),)))
    ann, bob = ServedClient(1, "ann", 1.0, None), ServedClient(2, "bob", 1.0, None)
    request = RequestDevices(5, "f", (SliceRequest(1, SliceSpec("s0", ("x",), (1,)), None, 0, 1, 1),))
    bob.disconnected.set()
    slices.remove_client(bob)
    bound = slices.bind(bob, request)
    assert (bound.request, bound.positions, bound.error) == (5, {}, "client 'bob' has disconnected")
    assert not slices._slices
    assert slices.bind(ann, request).positions == {1: (0,)}

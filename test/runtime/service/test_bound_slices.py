"""Binding of the slices of connected clients to devices."""

from __future__ import annotations

from pathways.runtime.plan.plan import SliceSpec
from pathways.runtime.resources import cluster
from pathways.runtime.resources.status import SliceStatus
from pathways.runtime.service.protocol.service_messages import RequestDevices, SliceRequest
from pathways.runtime.service.served.bound_slices import BoundSlices
from pathways.runtime.service.served.served_client import ServedClient


def bound_slices() -> BoundSlices:
    """Returns the slices of an island of two devices."""
    devices = tuple(cluster.Device(n, n, "cpu", cluster.Host(0), "island0", None) for n in range(2))
    return BoundSlices(cluster.Cluster((cluster.DeviceIsland("island0", devices),)))


def test_bound_slices_have_a_status_until_they_are_released():
    """The status has texts of clients, in which no control character may reach a terminal."""
    slices, ann = bound_slices(), ServedClient(1, "ann", None)
    for number, name in ((1, "s1"), (0, "s0\x1b[2J" + "x" * 90)):
        request = SliceRequest(number, SliceSpec(name, ("x",), (1,)), None, 0, 1, 1)
        slices.bind(ann, RequestDevices(5, "f\n", (request,)))
    assert slices.statuses() == {
        ann: (
            SliceStatus("s0?[2J" + "x" * 58, "island0", (1,), "f?"),
            SliceStatus("s1", "island0", (0,), "f?"),
        )
    }
    slices.release(ann, (0,))
    assert [status.name for status in slices.statuses()[ann]] == ["s1"]
    slices.remove_client(ann)
    assert slices.statuses() == {}


def test_bound_slices_bind_no_devices_of_a_disconnected_client():
    """The thread of its requests may handle one after it has disconnected."""
    slices = bound_slices()
    ann, bob = ServedClient(1, "ann", None), ServedClient(2, "bob", None)
    request = RequestDevices(5, "f", (SliceRequest(1, SliceSpec("s0", ("x",), (1,)), None, 0, 1, 1),))
    bob.disconnected.set()
    slices.remove_client(bob)
    bound = slices.bind(bob, request)
    assert (bound.request, bound.positions, bound.error) == (5, {}, "client 'bob' has disconnected")
    assert not slices._slices
    assert slices.bind(ann, request).positions == {1: (0,)}

"""Binding of the slices of connected clients to devices."""

from __future__ import annotations

from pathways.runtime.plan.plan import SliceSpec
from pathways.runtime.resources import cluster
from pathways.runtime.resources.status import SliceStatus
from pathways.runtime.service.protocol.service_messages import MoveSlices, RequestDevices, SliceRequest
from pathways.runtime.service.served.bound_slices import BoundSlices
from pathways.runtime.service.served.served_client import ServedClient


def bound_slices(islands: int = 1) -> BoundSlices:
    """Returns the slices of islands of two devices."""
    devices = [
        tuple(cluster.Device(2 * i + n, n, "cpu", cluster.Host(i), f"island{i}", None) for n in range(2))
        for i in range(islands)
    ]
    return BoundSlices(
        cluster.Cluster(tuple(cluster.DeviceIsland(f"island{i}", own) for i, own in enumerate(devices)))
    )


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


def test_bound_slices_move_as_planned_only():
    """A plan is dropped when the island returns; then its devices may be planned for others."""
    slices, ann = bound_slices(3), ServedClient(1, "ann", None)
    requests = tuple(
        SliceRequest(n, SliceSpec(f"s{n}", ("x",), (2,), "island1" if n else None), None, 0, 1, 1)
        for n in range(2)
    )
    assert slices.bind(ann, RequestDevices(5, "f", requests)).positions == {0: (0, 1), 1: (2, 3)}
    slices.close_island("island0", moves_all=True)
    assert slices.planned(ann) == {0: (4, 5)}
    assert slices.states_on(ann, "island0") == ["slice s0 (moves)"]
    slices.open_island("island0")
    refused = slices.move(ann, MoveSlices(6, {0: (4, 5)}))
    assert (refused.request, refused.error) == (6, "the devices of slice 's0' were planned anew")
    slices.close_island("island0", moves_all=True)
    for wrong in ((4,), (4, 4), (3, 4), (4, 6), (-1, 5)):
        assert slices.move(ann, MoveSlices(7, {0: wrong})).error
    assert slices.numbers_on(ann, "island0") == {0}
    assert slices.move(ann, MoveSlices(8, {0: (4, 5), 7: (0, 1)})).error == ""
    assert slices.numbers_on(ann, "island2") == {0}
    slices.close_island("island1", moves_all=True)
    assert slices.planned(ann) == {}
    assert slices.states_on(ann, "island1") == ["slice s1 (pinned)"]


def test_bound_slices_get_the_devices_of_an_island_that_joins():
    slices, ann = bound_slices(), ServedClient(1, "ann", None)
    request = RequestDevices(5, "f", (SliceRequest(0, SliceSpec("s", ("x",), (3,)), None, 0, 1, 1),))
    assert "not enough devices: it needs 3" in slices.bind(ann, request).error
    islands = tuple(
        cluster.DeviceIsland(
            f"island{n}",
            tuple(cluster.Device(k, k, "cpu", cluster.Host(n), f"island{n}", None) for k in positions),
        )
        for n, positions in enumerate((range(2), range(2, 5)))
    )
    slices.extend(cluster.Cluster(islands))
    assert slices.bind(ann, request).positions == {0: (2, 3, 4)}

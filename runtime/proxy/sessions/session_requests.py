"""Requests about the session itself: its devices, and the state of futures and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pathways.runtime.proxy.arrays.layouts import default_layout
from pathways.runtime.proxy.arrays.placements import STRING, checked_shape
from pathways.runtime.proxy.sessions.replies import DeferredReply, wait_for
from pathways.runtime.proxy.sessions.state import Handler, SessionState
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError


def _init(state: SessionState, body: Any, response: Any) -> None:
    state.served.describe(response, state.number)


def _check_future(state: SessionState, body: Any, response: Any) -> DeferredReply | None:
    waited = state.futures.pop(body.future_handle, None)
    if waited is None:
        raise StatusError(StatusCode.INVALID_ARGUMENT, f"no future has the handle {body.future_handle}")
    return wait_for(waited)


def _check_value_ready(state: SessionState, body: Any, response: Any) -> DeferredReply | None:
    return wait_for(state.arrays_of(body.value_handles))


def _get_default_device_assignment(state: SessionState, body: Any, response: Any) -> None:
    replicas, partitions = body.num_replicas, body.num_partitions
    devices = state.served.devices
    if not 1 <= replicas * partitions <= len(devices):
        raise StatusError(
            StatusCode.INVALID_ARGUMENT,
            f"{replicas} x {partitions} devices of a server that has {len(devices)}",
        )
    assignment = response.device_assignment
    assignment.replica_count, assignment.computation_count = replicas, partitions
    for partition in range(partitions):
        chosen = devices[partition * replicas : (partition + 1) * replicas]
        assignment.computation_devices.add(replica_device_ids=[device.id for device in chosen])


def _get_default_layout(state: SessionState, body: Any, response: Any) -> None:
    dtype = state.served.dtype(body.dtype)
    state.served.device(body.device_id)
    # All supported platforms have the same layout in each kind of memory.
    state.served.memory_kind(body.memory_kind or None)
    if dtype == STRING:
        raise StatusError(StatusCode.INVALID_ARGUMENT, "arrays of strings have no layout")
    # The field holds bytes, but clients expect text in it.
    response.serialized_pjrt_layout = default_layout(dtype, len(checked_shape(body.dims))).encode()


HANDLERS: Mapping[str, Handler] = {
    "init_request": _init,
    "check_future_request": _check_future,
    "check_value_ready_request": _check_value_ready,
    "get_default_device_assignment_request": _get_default_device_assignment,
    "get_default_layout_request": _get_default_layout,
}

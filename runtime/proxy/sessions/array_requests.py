"""Requests of arrays: creation from host buffers or other arrays, reads, and deletion."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pathways.runtime.proxy.arrays import host_views
from pathways.runtime.proxy.arrays.placements import STRING, ArraySpec
from pathways.runtime.proxy.arrays.proxy_array import ProxyArray
from pathways.runtime.proxy.devices import shape_of
from pathways.runtime.proxy.sessions.replies import DeferredReply
from pathways.runtime.proxy.sessions.state import DONATED, Handler, SessionState
from pathways.runtime.proxy.wire.events import Buffer
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError

_STRINGS = "xla.ifrt.proto.StringArrayContents"
"""Message in the host buffer of an array of strings."""

_MAX_FETCH_INLINE_BYTES = 64 << 10
"""Size up to which the dispatching thread fetches a ready array itself, faster than another thread would."""


def _make_array_from_host_buffer(state: SessionState, body: Any, response: Any) -> None:
    def make() -> list[ProxyArray]:
        # Taken first, even if the rest is invalid: nothing else removes the buffer from the session.
        data = state.host_buffers.take(body.host_buffer_handle)
        shape = shape_of(body.shape)
        layout = state.served.layout(body.layout, len(shape))
        spec = ArraySpec(state.served.dtype(body.dtype), shape, state.served.placement(body.sharding), layout)
        value = _view_host_buffer(state, data, spec, _strides(body))
        return [state.served.engine.make(spec, [value] * len(spec.placement.devices))]

    state.put([body.array_handle], make)
    response.array_handle = body.array_handle


def _make_arrays_from_host_buffer_shards(state: SessionState, body: Any, response: Any) -> None:
    _check_counts(handles=body.array_handles, specifications=body.specs)
    for spec, handle in zip(body.specs, body.array_handles, strict=True):
        state.put([handle], functools.partial(_make_of_shards, state, spec))
    response.array_handles.extend(body.array_handles)


def _make_of_shards(state: SessionState, proto: Any) -> list[ProxyArray]:
    buffers = [state.host_buffers.take(buffer.host_buffer_handle) for buffer in proto.host_buffers]
    spec = state.served.spec(proto.array_spec)
    shards: list[Any] = [None] * len(spec.placement.devices)
    _check_counts(**{"host buffers": buffers, "lists of shards": proto.addressable_shard_indices})
    for indices, buffer, data in zip(
        proto.addressable_shard_indices, proto.host_buffers, buffers, strict=True
    ):
        shard_spec = ArraySpec(state.served.dtype(buffer.dtype), shape_of(buffer.shape), spec.placement)
        value = _view_host_buffer(state, data, shard_spec, _strides(buffer))
        for index in indices.indices:
            if not 0 <= index < len(shards):
                raise StatusError(StatusCode.INVALID_ARGUMENT, f"shard {index} of an array of {len(shards)}")
            shards[index] = value
    if any(shard is None for shard in shards):
        raise StatusError(StatusCode.INVALID_ARGUMENT, "a shard has no host buffer")
    return [state.served.engine.make(spec, shards)]


def _make_error_arrays(state: SessionState, body: Any, response: Any) -> None:
    code = body.error.code
    valid = StatusCode(code) if code in StatusCode.__members__.values() and code else StatusCode.UNKNOWN
    error = StatusError(valid, body.error.message)
    state.put(
        body.array_handles, lambda: [ProxyArray(state.served.spec(spec), error) for spec in body.array_specs]
    )
    response.array_handles.extend(body.array_handles)


def _assemble_array_from_single_device_arrays(state: SessionState, body: Any, response: Any) -> None:
    def make() -> list[ProxyArray]:
        shards = state.arrays_of(body.single_device_array_handles)
        if not shards:
            raise StatusError(StatusCode.INVALID_ARGUMENT, "an array needs at least one shard")
        has_dtype = body.HasField("dtype")
        dtype = state.served.dtype(body.dtype) if has_dtype else shards[0].read()[0].dtype
        spec = ArraySpec(dtype, shape_of(body.shape), state.served.placement(body.sharding))
        return [state.served.engine.assemble(spec, shards)]

    state.put([body.result_handle], make)
    state.donate(body.single_device_array_handles, body.copy_semantics)
    response.array_handle = body.result_handle


def _disassemble_into_single_device_arrays(state: SessionState, body: Any, response: Any) -> None:
    state.put(body.result_handles, lambda: state.served.engine.disassemble(state.array(body.array_handle)))
    state.donate([body.array_handle], body.copy_semantics)
    response.array_handles.extend(body.result_handles)


def _copy_arrays(state: SessionState, body: Any, response: Any) -> None:
    def make() -> list[ProxyArray]:
        devices = [state.served.device(number) for number in body.device_ids]
        memory = body.memory_kind if body.HasField("memory_kind") else None
        return state.served.engine.copy(state.arrays_of(body.array_handles), devices, memory)

    state.put(body.result_handles, make)
    state.donate(body.array_handles, body.copy_semantics)
    response.array_handles.extend(body.result_handles)


def _fully_replicated_shard(state: SessionState, body: Any, response: Any) -> None:
    state.put(
        [body.result_handle],
        lambda: [state.served.engine.fully_replicated_shard(state.array(body.array_handle))],
    )
    state.donate([body.array_handle], body.copy_semantics)
    response.array_handle = body.result_handle


def _remap_arrays(state: SessionState, body: Any, response: Any) -> None:
    def make() -> list[ProxyArray]:
        specs = [state.served.spec(spec) for spec in body.plan.output_specs]
        return state.served.engine.remap(specs, body.plan, state.arrays_of(body.array_handles))

    state.put(body.result_handles, make)
    state.donate(body.array_handles, body.copy_semantics)
    response.array_handles.extend(body.result_handles)


def _bitcast_arrays(state: SessionState, body: Any, response: Any) -> None:
    _put_each(state, body, state.served.engine.bitcast)
    state.donate(body.array_handles, body.copy_semantics)
    response.array_handles.extend(body.result_handles)


def _reshard_arrays(state: SessionState, body: Any, response: Any) -> None:
    _put_each(state, body, state.served.engine.reshard)
    state.donate(body.array_handles, body.copy_semantics)
    response.array_handles.extend(body.result_handles)


def _put_each(state: SessionState, body: Any, make: Callable[[ArraySpec, ProxyArray], ProxyArray]) -> None:
    """Creates an array from each array of a request, by its specification."""
    _check_counts(results=body.result_handles, arrays=body.array_handles, specifications=body.array_specs)
    for result, handle, spec in zip(body.result_handles, body.array_handles, body.array_specs, strict=True):
        state.put([result], functools.partial(_make_one, state, make, spec, handle))


def _make_one(
    state: SessionState, make: Callable[[ArraySpec, ProxyArray], ProxyArray], spec: Any, handle: int
) -> list[ProxyArray]:
    return [make(state.served.spec(spec), state.array(handle))]


def _copy_to_host_buffer(state: SessionState, body: Any, response: Any) -> DeferredReply | None:
    array = state.array(body.array_handle)
    strides = _strides(body)

    def fetch() -> None:
        value = state.served.engine.fetch(array)
        state.host_buffers.store(body.host_buffer_handle, _to_host_buffer(state, value, strides))

    if not isinstance(array.value, StatusError) and not (
        array.is_ready and array.value.nbytes <= _MAX_FETCH_INLINE_BYTES
    ):
        return DeferredReply([array], fetch)
    fetch()
    return None


def _delete_array(state: SessionState, body: Any, response: Any) -> None:
    for handle in body.array_handle:
        array = state.arrays.get(handle)
        if array is not None and not isinstance(array.value, StatusError) and not array.value.is_deleted():
            array.value.delete()
            array.free()
    response.deletion_future_handle = state.add_future()


def _is_array_deleted(state: SessionState, body: Any, response: Any) -> None:
    value = state.array(body.array_handle).value
    response.deleted = value is DONATED or (not isinstance(value, StatusError) and value.is_deleted())


def _destruct_array(state: SessionState, body: Any, response: Any) -> None:
    for handle in body.array_handle:
        state.arrays.pop(handle, None)


def _check_counts(**groups: Sequence[Any]) -> None:
    """Checks that lists of a request have the same length.

    Raises:
      StatusError: they do not.
    """
    if len({len(group) for group in groups.values()}) > 1:
        counts = ", ".join(f"{len(group)} {name}" for name, group in groups.items())
        raise StatusError(StatusCode.INVALID_ARGUMENT, f"the request has {counts}; it needs as many of each")


def _strides(body: Any) -> Sequence[int] | None:
    return tuple(body.byte_strides.strides) if body.HasField("byte_strides") else None


def _view_host_buffer(
    state: SessionState, data: Buffer, spec: ArraySpec, strides: Sequence[int] | None
) -> np.ndarray:
    if spec.dtype != STRING:
        return host_views.view_host_buffer(data, spec, strides)
    contents = state.served.messages.parse(_STRINGS, data)
    return np.array([text.decode() for text in contents.strings], STRING).reshape(spec.shape)


def _to_host_buffer(state: SessionState, value: np.ndarray, strides: Sequence[int] | None) -> Buffer:
    if value.dtype != STRING:
        return host_views.to_host_buffer(value, strides)
    texts = [str(text).encode() for text in value.flat]
    return state.served.messages[_STRINGS](strings=texts).SerializeToString()


HANDLERS: Mapping[str, Handler] = {
    "make_array_from_host_buffer_request": _make_array_from_host_buffer,
    "make_arrays_from_host_buffer_shards_request": _make_arrays_from_host_buffer_shards,
    "make_error_arrays_request": _make_error_arrays,
    "assemble_array_from_single_device_arrays_request": _assemble_array_from_single_device_arrays,
    "disassemble_into_single_device_arrays_request": _disassemble_into_single_device_arrays,
    "copy_arrays_request": _copy_arrays,
    "fully_replicated_shard_request": _fully_replicated_shard,
    "remap_arrays_request": _remap_arrays,
    "bitcast_arrays_request": _bitcast_arrays,
    "reshard_arrays_request": _reshard_arrays,
    "copy_to_host_buffer_request": _copy_to_host_buffer,
    "delete_array_request": _delete_array,
    "is_array_deleted_request": _is_array_deleted,
    "destruct_array_request": _destruct_array,
}

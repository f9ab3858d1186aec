"""Validation of `xla.OpSharding` messages: XLA aborts the process for an inconsistent one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError

_MAX_DIMENSIONS = 64
_REPLICATED, _MAXIMAL, _TUPLE, _OTHER, _MANUAL, _UNKNOWN, _UNREDUCED = range(7)
_SUBGROUPS = (_REPLICATED, _MANUAL, _UNREDUCED)
"""Kinds of dimensions that divide no data."""


def check_op_sharding(proto: Any, devices: int) -> None:
    """Checks that a sharding describes an array on a number of devices.

    Raises:
      StatusError: it does not.
    """
    if proto.HasField("named_sharding"):
        problem = _problem_of_named(proto.named_sharding, devices)
    elif proto.type == _OTHER:
        problem = _problem_of_tiles(proto, devices)
    elif proto.type == _MAXIMAL:
        problem = (
            None if list(proto.tile_assignment_devices) == [0] and devices == 1 else "one device of several"
        )
    else:
        problem = None if proto.type in (_REPLICATED, *_SUBGROUPS) else f"type {proto.type}"
    if problem is not None:
        raise StatusError(StatusCode.INVALID_ARGUMENT, f"invalid sharding over {devices} devices: {problem}")


def _problem_of_tiles(proto: Any, devices: int) -> str | None:
    dims = list(proto.tile_assignment_dimensions)
    if not _is_shape_of(dims, devices):
        return f"tiles {dims[:_MAX_DIMENSIONS]}"
    listed, reshape, permutation = (
        list(proto.tile_assignment_devices),
        list(proto.iota_reshape_dims),
        list(proto.iota_transpose_perm),
    )
    if listed and (reshape or sorted(listed) != list(range(devices))):
        return "a device is missing or listed twice"
    if not listed and not (
        _is_shape_of(reshape, devices) and sorted(permutation) == list(range(len(reshape)))
    ):
        return "an invalid order of devices"
    subgroups = list(proto.last_tile_dims)
    if len(subgroups) > len(dims) or any(kind not in _SUBGROUPS for kind in subgroups):
        return "invalid subgroups"
    if proto.replicate_on_last_tile_dim and subgroups:
        return "two ways to replicate"
    return "shard groups" if proto.is_shard_group else None


def _is_shape_of(dims: Sequence[int], devices: int) -> bool:
    return 0 < len(dims) <= _MAX_DIMENSIONS and min(dims) >= 1 and math.prod(dims) == devices


def _problem_of_named(proto: Any, devices: int) -> str | None:
    sizes = [axis.size for axis in proto.mesh.axes]
    names = [axis.name for axis in proto.mesh.axes]
    ids = list(proto.mesh.device_ids)
    if sizes and not _is_shape_of(sizes, devices):
        return f"a mesh of {sizes[:_MAX_DIMENSIONS]}"
    if len(set(names)) != len(names) or not all(names):
        return "axes without a name of their own"
    if proto.mesh.HasField("iota_transform"):
        transform = proto.mesh.iota_transform
        reshape, permutation = list(transform.reshape_dims), list(transform.transpose_perm)
        if ids or not (_is_shape_of(reshape, devices) and sorted(permutation) == list(range(len(reshape)))):
            return "an invalid order of devices"
    elif ids and (not sizes or sorted(ids) != list(range(devices))):
        return "a device is missing or listed twice"
    if len(proto.dim_shardings) > _MAX_DIMENSIONS or proto.reduction_op not in (0, 1, 2):
        return "too many dimensions"
    refs = [ref for dim in proto.dim_shardings for ref in dim.axes]
    refs += [*proto.replicated_axes, *proto.unreduced_axes, *proto.manual_axes]
    return _problem_of_axes(refs, sizes)


def _problem_of_axes(refs: Sequence[Any], sizes: Sequence[int]) -> str | None:
    """Returns the problem of axes: each must exist and be used once, or once for each sub-axis."""
    # A sub-axis has the factors of its axis from `pre_size` to `pre_size * size`, as of a mixed radix number.
    # Two share no factor if the end of the one divides the start of the other.
    used: dict[int, list[tuple[int, int]]] = {}
    for ref in refs:
        axis = ref.mesh_axis_index
        if not 0 <= axis < len(sizes):
            return "an axis that the mesh does not have"
        before, end = 1, sizes[axis]
        if ref.HasField("sub_axis_info"):
            before, size = ref.sub_axis_info.pre_size, ref.sub_axis_info.size
            if before < 1 or size < 2 or sizes[axis] % (before * size) or size == sizes[axis]:
                return "an invalid sub-axis"
            end = before * size
        used.setdefault(axis, []).append((before, end))
    for factors in used.values():
        factors.sort()
        # An axis of size 1 has no factors, but may not be named twice either.
        if any(
            factor == next_factor or next_factor[0] % factor[1]
            for factor, next_factor in itertools.pairwise(factors)
        ):
            return "an axis that is used twice"
    return None

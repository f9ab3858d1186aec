"""Records of committed versions, which hosts keep beside the blocks, so that another controller can resume.

A record is JSON: the layouts of the arrays on hosts, the values of small leaves in this process, and the
position of the source.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import msgspec
import numpy as np

from pathways.compiler.frontend import jax_internals
from pathways.compiler.lower.structures import is_key
from pathways.compiler.resilience.layouts.host_layouts import HostArrayLayout, layout_at, placement_at
from pathways.compiler.resilience.layouts.host_replicas import HostReplicaLayout
from pathways.dialect.plain_data import PlainDataError, parse_json, read_record
from pathways.runtime.hosts.cluster.host import HostGang
from pathways.runtime.hosts.protocol.messages import DeviceLayout
from pathways.runtime.hosts.protocol.programs import ReplicaBlock
from pathways.runtime.resilience.records import VersionKey
from pathways.runtime.resources.tables import size
from pathways.runtime.xla import pjrt

MAX_LOCAL_BYTES = 1 << 20
"""Limit on the bytes of all leaves in this process that a record has."""

log = logging.getLogger("pathways")


class _RecordError(ValueError):
    """Error of a version that cannot be recorded, or of a record that this cluster cannot use."""


class _PlaceRecord(msgspec.Struct, frozen=True):
    island: int
    layout: DeviceLayout
    part: ReplicaBlock


class _HostsLeaf(msgspec.Struct, frozen=True, tag="hosts"):
    """Array on hosts.

    Attributes:
      name: its name, as in `HostArrayLayout`.
      dtype: its dtype; for typed PRNG keys their implementation.
      is_key: whether it has typed PRNG keys.
      is_weak: whether its dtype is weak.
      bounds: the bounds of its blocks, as in `HostArrayLayout`.
      replicas: its layouts on slices of replicas, as in `HostArrayLayout`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    is_key: bool
    is_weak: bool
    places: tuple[_PlaceRecord, ...]
    bounds: tuple[tuple[int, ...], ...] | None
    replicas: tuple[HostReplicaLayout, ...]


class _LocalArray(msgspec.Struct, frozen=True, tag="array"):
    """Array in this process.

    Attributes:
      kind: an array or a number of NumPy, an array of JAX, or typed PRNG keys.
      shape: the shape of its data, which for typed PRNG keys are their words.
      key: the implementation of typed PRNG keys; empty for others.
      is_weak: whether its dtype is weak.
      data: its bytes.
    """

    name: str
    kind: Literal["array", "number", "jax", "keys"]
    shape: tuple[int, ...]
    dtype: str
    key: str
    is_weak: bool
    data: bytes


class _LocalNumber(msgspec.Struct, frozen=True, tag="number"):
    """Number of Python; floats in hexadecimal, so that no bit is lost."""

    name: str
    kind: Literal["bool", "int", "float"]
    value: str


class _VersionRecord(msgspec.Struct, frozen=True):
    """Record of a version.

    Attributes:
      types: the name and the type of each leaf, in the order of the state.
      position: the position of the source as JSON; in base64 if it is bytes.
      is_bytes: whether the position is bytes.
      replicas: the replicas that ran.
    """

    types: tuple[tuple[str, str], ...]
    leaves: tuple[_HostsLeaf | _LocalArray | _LocalNumber, ...]
    position: str
    is_bytes: bool
    replicas: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class RecordedVersion:
    """Leaves and position of a version, which another controller needs besides the blocks.

    Attributes:
      leaves: the layout of each array on hosts; any other leaf itself.
      position: the position of the source, as `pw.checkpoint` saves it.
      replicas: the replicas that ran.
    """

    leaves: list[Any]
    position: Any
    replicas: tuple[int, ...]


class VersionRecorder:
    """Writer of records; warns once about a state that cannot be recorded."""

    def __init__(self) -> None:
        self._has_warned = False

    def write(self, tree: Any, version: RecordedVersion) -> str | None:
        """Returns the record of a version; None if a leaf in this process cannot be recorded.

        Args:
          tree: the structure of the state.
        """
        try:
            return _written(tree, version)
        except _RecordError as error:
            if not self._has_warned:
                text = "pw.resilient: if this process is killed, the same call goes on from disk alone: %s"
                log.warning(text, error)
            self._has_warned = True
            return None


def read_versions(
    records: Mapping[VersionKey, str], state: Any, gangs: Sequence[HostGang]
) -> dict[VersionKey, RecordedVersion]:
    """Returns the versions that this cluster can use; logs the reason against each other one.

    Args:
      state: a state of the same structure and types.
      gangs: the workers of each island.

    Raises:
      ValueError: a version is of another state; the message names the first leaf that differs.
    """
    versions = {}
    for key, text in records.items():
        try:
            versions[key] = _read(text, state, gangs)
        except _RecordError as error:
            log.warning("pw.resilient: %s in memory is not used: %s", key, error)
    return versions


def _written(tree: Any, version: RecordedVersion) -> str:
    leaves, position = version.leaves, version.position
    names = _names(jax.tree.unflatten(tree, range(len(leaves))))
    local = [leaf for leaf in leaves if not isinstance(leaf, HostArrayLayout)]
    if (count := sum(getattr(leaf, "nbytes", 0) for leaf in local if not _is_key(leaf))) > MAX_LOCAL_BYTES:
        raise _RecordError(f"{size(count)} of the state are in this process")
    written = tuple(
        _hosts_leaf(name, leaf) if isinstance(leaf, HostArrayLayout) else _local_leaf(name, leaf)
        for name, leaf in zip(names, leaves, strict=True)
    )
    types = tuple(zip(names, map(_type_of, leaves), strict=True))
    is_bytes = isinstance(position, bytes)
    text = base64.b64encode(position).decode() if is_bytes else json.dumps(position)
    return msgspec.json.encode(_VersionRecord(types, written, text, is_bytes, version.replicas)).decode()


def _read(text: str, state: Any, gangs: Sequence[HostGang]) -> RecordedVersion:
    try:
        record = read_record(parse_json(text.encode()), _VersionRecord)
    except PlainDataError as error:
        raise _RecordError(f"its record cannot be read: {error}") from None
    _check_alike(dict(record.types), state)
    leaves = [
        _layout(leaf, gangs) if isinstance(leaf, _HostsLeaf) else _local_value(leaf) for leaf in record.leaves
    ]
    position = base64.b64decode(record.position) if record.is_bytes else json.loads(record.position)
    return RecordedVersion(leaves, position, record.replicas)


def _names(tree: Any) -> list[str]:
    return [f"state{jax.tree_util.keystr(path)}" for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and is_key(leaf.aval)


def _hosts_leaf(name: str, leaf: HostArrayLayout) -> _HostsLeaf:
    aval = leaf.aval
    dtype = jax_internals.key_kind(aval.dtype) if is_key(aval) else aval.dtype.name
    places = tuple(_PlaceRecord(place.island, place.layout, place.part) for place in leaf.places)
    return _HostsLeaf(
        name, tuple(aval.shape), dtype, is_key(aval), bool(aval.weak_type), places, leaf.bounds, leaf.replicas
    )


def _layout(leaf: _HostsLeaf, gangs: Sequence[HostGang]) -> HostArrayLayout:
    """Returns the layout of an array on the hosts of this cluster."""
    devices = {
        (gang.number, device): host.index
        for gang in gangs
        for host in gang.hosts
        for device in host.ready.devices
    }
    slices = [record for layout in leaf.replicas for record in layout.slices]
    needed = {(record.island, device) for record in leaf.places for device in record.layout.devices}
    needed.update((record.island, device) for record in slices for device in record.devices)
    if missing := sorted(needed - devices.keys()):
        raise _RecordError(f"this cluster has not the devices of {leaf.name} on island{missing[0][0]}")
    for record in slices:
        if [devices[record.island, device] for device in record.devices] != [*record.hosts]:
            raise _RecordError(f"devices of {leaf.name} on island{record.island} are on other hosts now")
    if leaf.is_key:
        dtype = jax.eval_shape(functools.partial(jax.random.key, impl=leaf.dtype), 0).dtype
    else:
        dtype = jax.numpy.dtype(leaf.dtype)
    aval = jax.core.ShapedArray(leaf.shape, dtype, weak_type=leaf.is_weak)
    locations = [gangs[place.island].location(place.layout, place.part) for place in leaf.places]
    return layout_at(leaf.name, aval, [*map(placement_at, locations)], leaf.bounds, leaf.replicas)


def _local_leaf(name: str, leaf: Any) -> _LocalArray | _LocalNumber:
    match leaf:
        case bool():
            return _LocalNumber(name, "bool", repr(leaf))
        case float() if not isinstance(leaf, np.generic):
            return _LocalNumber(name, "float", leaf.hex())
        case int():
            return _LocalNumber(name, "int", repr(leaf))
        case jax.Array() if len(leaf.devices()) == 1:
            if is_key(leaf.aval):
                words = np.asarray(jax.random.key_data(leaf))
                return _array(name, "keys", words, key=jax_internals.key_kind(leaf.dtype))
            return _array(name, "jax", np.asarray(leaf), is_weak=bool(leaf.weak_type))
        case np.ndarray() | np.generic() if (
            jax.dtypes.issubdtype(leaf.dtype, np.number) or leaf.dtype == bool
        ):
            return _array(name, "array" if isinstance(leaf, np.ndarray) else "number", np.asarray(leaf))
    raise _RecordError(f"{name} is a {type(leaf).__name__} in this process")


def _array(
    name: str,
    kind: Literal["array", "number", "jax", "keys"],
    data: np.ndarray[Any, Any],
    *,
    key: str = "",
    is_weak: bool = False,
) -> _LocalArray:
    return _LocalArray(name, kind, data.shape, data.dtype.name, key, is_weak, data.tobytes())


def _local_value(leaf: _LocalArray | _LocalNumber) -> Any:
    """Returns the leaf that `_local_leaf` recorded."""
    if isinstance(leaf, _LocalNumber):
        match leaf.kind:
            case "bool":
                return leaf.value == "True"
            case "int":
                return int(leaf.value)
            case "float":
                return float.fromhex(leaf.value)
    dtype = jax.numpy.dtype(leaf.dtype)
    # A copy: the array over `bytes` is read-only.
    data = np.frombuffer(leaf.data, dtype).reshape(leaf.shape).copy()
    match leaf.kind:
        case "array":
            return data
        case "number":
            return data[()]
        case "keys":
            return jax.random.wrap_key_data(jax.numpy.asarray(data), impl=leaf.key)
        case "jax":
            # Without x64 JAX would narrow 64-bit elements.
            with jax.enable_x64(True):
                array = jax.numpy.asarray(data)
            if not leaf.is_weak:
                return array
            return pjrt.rewrap(
                jax.core.ShapedArray(array.shape, array.dtype, weak_type=True), array.sharding
            )(array)


def _check_alike(recorded: Mapping[str, str], state: Any) -> None:
    """Rejects a version of another state."""
    present = dict(zip(_names(state), map(_type_of, jax.tree.leaves(state)), strict=True))
    for name in [*recorded, *present]:
        if recorded.get(name) != present.get(name):
            has, passed = (types.get(name, "missing") for types in (recorded, present))
            raise ValueError(
                f"pw.resilient: {name} is {has} in the run that goes on, and {passed} in the state of this "
                "call; pass a state as that run began with, or another folder as directory="
            )


def _type_of(leaf: Any) -> str:
    """Returns the type of a leaf, as programs see it."""
    if isinstance(leaf, HostArrayLayout):
        leaf = leaf.aval
    if not isinstance(leaf, bool | int | float | complex) and not hasattr(leaf, "dtype"):
        return type(leaf).__name__
    shape = ",".join(map(str, np.shape(leaf)))
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        dtype = jax.numpy.result_type(leaf)
    elif not jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return f"{dtype}[{shape}]"

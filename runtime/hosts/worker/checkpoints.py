"""Checkpoint input and output on hosts, with tensorstore; called by `compiler.data.host_checkpoints`.

A save is two calls. `copy` is ordered among steps, so the arrays may be donated right after it; `write` takes
as long as the disk does, and holds no array. `snapshots.map_blocks` takes the place of `copy` for snapshots.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import re
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pathways.runtime.hosts.worker.array_store import FailedArray
from pathways.runtime.hosts.worker.call_runner import CallRefused, context, of_package
from pathways.runtime.hosts.worker.large_memory import memory_of
from pathways.runtime.xla import pjrt

_IN_FLIGHT = 256 << 20
"""Bytes that are encoded and written, or read, concurrently."""

_lock = threading.Lock()


@of_package
def copy(
    arrays: Sequence[Any], *, save: str, names: list[str], shards: dict[str, list[tuple[int, int]]]
) -> None:
    """Copies shards, for `write`.

    Args:
      arrays: all arrays of this island that are saved.
      names: the name of each array.
      shards: for each host the index of an array and of its shard on the host, in order.
    """
    for name, array in zip(names, arrays, strict=True):
        if isinstance(array, FailedArray):
            raise CallRefused("argument", f"{name} is an error: {array.error}")
    own = shards[str(context().host)]
    context().kept[save] = [_copied(arrays[n].addressable_shards[shard].data) for n, shard in own]


@of_package
def drop(*, save: str) -> None:
    """Frees the copies of a save that is not written."""
    context().kept.pop(save, None)


@of_package
def write(
    *, save: str, folder: str, leaves: list[dict[str, Any]], settings: dict[str, Any]
) -> dict[str, int]:
    """Writes the shards that `copy` has copied.

    Args:
      save: the name of the save, which a file in the folder has to contain: proof that this host sees the
        folder of the controller.
      leaves: what this host writes: the spec of tensorstore of each leaf, and its pieces, each the number of
        a copy and the first element in each dimension.
      settings: of the context of tensorstore.

    Returns:
      The size and the checksum of the manifest, which the controller has to find in the folder.
    """
    host = context().host
    kept = context().kept.pop(save)
    token = Path(folder, f".{save}")
    try:
        is_seen = token.read_text() == save
    except OSError:
        is_seen = False
    if not is_seen:
        raise CallRefused("folder", f"does not see the folder {folder}")
    with _errors_of_system(folder):
        _write_all(leaves, kept, settings)
    return manifest(Path(folder, f"ocdbt.process_host{host}"))


@of_package
def read(
    *, folder: str, seen: dict[str, int] | None, leaves: list[dict[str, Any]], settings: Any
) -> list[Any]:
    """Reads the shards of this host.

    Args:
      seen: the manifest that the controller sees, see `manifest`; None where it reads no manifest.
      leaves: for each array the spec of tensorstore, and the first element in each dimension that is read.
      settings: of the context of tensorstore.
    """
    path = Path(folder)
    if not path.exists() or (seen is not None and manifest(path) != seen):
        raise CallRefused("folder", f"does not see the folder {folder}")
    with _errors_of_system(folder):
        return _read_all(leaves, settings)


def manifest(folder: Path) -> dict[str, int]:
    """Returns the size and the checksum of the manifest in a folder; the size is -1 if there is none."""
    try:
        data = (folder / "manifest.ocdbt").read_bytes()
    except OSError:
        return {"size": -1, "checksum": 0}
    return {"size": len(data), "checksum": zlib.crc32(data)}


def _copied(shard: jax.Array) -> np.ndarray[Any, Any]:
    array = np.asarray(shard)
    if next(iter(shard.devices())).platform != "cpu":
        # Off the host's memory `asarray` has copied already.
        return array
    copied = memory_of(array.nbytes).view(array.dtype).reshape(array.shape)
    np.copyto(copied, array)
    return copied


@functools.cache
def _tensorstore() -> Any:
    try:
        import tensorstore
    except ImportError as error:
        raise CallRefused(
            "import", f"needs orbax-checkpoint: pip install pathways-mlir[checkpoint] ({error})"
        ) from None
    return tensorstore


def _write_all(leaves: Sequence[dict[str, Any]], kept: list[Any], settings: Any) -> None:
    ts = _tensorstore()
    with_context = {"context": ts.Context(settings)}
    opened: list[Any] = []
    flight = _Flight()
    try:
        for leaf in leaves:
            opened.append(ts.open(ts.Spec(leaf["spec"]), create=True, open=True, **with_context))
        for future, leaf in zip(opened, leaves, strict=True):
            store = future.result()
            for number, first in leaf["pieces"]:
                data = kept[number]
                # The write alone holds the copy, which is freed when it is done.
                kept[number] = None
                flight.add(
                    lambda store=store, data=data, first=first: store[_block(first, data.shape)].write(
                        data, can_reference_source_data_indefinitely=True
                    ),
                    data.nbytes,
                )
        flight.land()
    finally:
        # Wait after errors, too: later writes would get into the next save of this step.
        flight.settle()
        for future in opened:
            future.exception()


def _read_all(leaves: Sequence[dict[str, Any]], settings: Any) -> list[Any]:
    ts = _tensorstore()
    options = {"open": True, "read": True, "context": ts.Context(settings)}
    opened = [ts.open(ts.Spec(leaf["spec"]), **options) for leaf in leaves]
    call, flight = context(), _Flight()
    shards: list[dict[tuple[tuple[int, int], ...], Any]] = []
    for future, leaf, result, sharding in zip(opened, leaves, call.results, call.shardings, strict=True):
        store = future.result()
        itemsize = jax.numpy.dtype(result.dtype).itemsize
        reads: dict[tuple[tuple[int, int], ...], Any] = {}
        for index in sharding.addressable_devices_indices_map(result.shape).values():
            bounds = _bounds(index, result.shape)
            if bounds in reads:
                continue
            shape = [stop - start for start, stop in bounds]
            first = [offset + start for offset, (start, _) in zip(leaf["first"], bounds, strict=True)]
            reads[bounds] = flight.add(
                lambda store=store, first=first, shape=shape: store[_block(first, shape)].read(),
                itemsize * int(np.prod(shape)),
            )
        shards.append(reads)
    flight.land()
    return [
        _assembled(reads, result, sharding)
        for reads, result, sharding in zip(shards, call.results, call.shardings, strict=True)
    ]


def _assembled(reads: dict[Any, Any], result: Any, sharding: Any) -> Any:
    dtype = jax.numpy.dtype(result.dtype)
    placed = []
    # Without x64 JAX would narrow 64-bit elements.
    with jax.enable_x64(True):
        for device, index in sharding.addressable_devices_indices_map(result.shape).items():
            data = np.asarray(reads[_bounds(index, result.shape)].result())
            if data.dtype != dtype:
                data = data.astype(dtype)
            placed.append(pjrt.put_shard(data, device, sharding))
    # All shards may be on other hosts of the island.
    return jax.make_array_from_single_device_arrays(result.shape, sharding, placed) if placed else None


def _bounds(index: Any, shape: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Returns the first and last-plus-one element of a shard in each dimension."""
    return tuple(of_dim.indices(size)[:2] for of_dim, size in zip(index, shape, strict=True))


def _block(first: Sequence[int], shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(start, start + size) for start, size in zip(first, shape, strict=True))


class _Flight:
    """Window of concurrent reads or writes, limited in bytes."""

    def __init__(self) -> None:
        self._futures: collections.deque[tuple[Any, int]] = collections.deque()
        self._bytes = 0

    def add(self, begin: Any, size: int) -> Any:
        """Begins a read or write when there is room for its bytes; returns its future."""
        while self._futures and self._bytes + size > _IN_FLIGHT:
            self._land_one()
        future = begin()
        self._futures.append((future, size))
        self._bytes += size
        return future

    def land(self) -> None:
        """Waits for all; raises the error of the first that failed."""
        while self._futures:
            self._land_one()

    def settle(self) -> None:
        """Waits for all, whether they fail or not."""
        while self._futures:
            self._futures.popleft()[0].exception()

    def _land_one(self) -> None:
        future, size = self._futures.popleft()
        self._bytes -= size
        future.result()


@contextlib.contextmanager
def _errors_of_system(folder: str) -> Any:
    """Raises operating system errors of tensorstore as `OSError`."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        if (of_system := system_error(error, folder)) is None:
            raise
        raise of_system from None


def system_error(error: Exception, folder: str) -> OSError | None:
    """Returns the operating system's error in an error of tensorstore about a folder; None for others."""
    found = re.search(r"os_error_code='(\d+)'|OS error (\d+)", str(error))
    if isinstance(error, OSError) or found is None:
        return None
    number = int(found[1] or found[2])
    return OSError(number, os.strerror(number), folder)

"""Checkpoint input and output on hosts, with tensorstore; called by `host_files`.

A save is two calls. `copy` is ordered among steps, so the arrays may be donated right after it; `write` takes
as long as the disk does, and holds no array. `snapshots.map_blocks` takes the place of `copy` for snapshots.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pathways.runtime.data.array_files import ArrayFiles, system_error
from pathways.runtime.hosts.worker.array_store import FailedArray
from pathways.runtime.hosts.worker.call_runner import CallRefused, context, of_package
from pathways.runtime.hosts.worker.large_memory import memory_of
from pathways.runtime.plan.block_rows import Rows, rows_of, shape_of
from pathways.runtime.xla import pjrt


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
    shards_of_host = shards[str(context().host)]
    context().objects[save] = [
        _copied(arrays[n].addressable_shards[shard].data) for n, shard in shards_of_host
    ]


@of_package
def drop(*, save: str) -> None:
    """Frees the copies of a save that is not written."""
    context().objects.pop(save, None)


@of_package
def write(
    *, save: str, folder: str, leaves: list[dict[str, Any]], settings: dict[str, Any]
) -> dict[str, int]:
    """Writes the shards that `copy` has copied.

    Args:
      save: the name of the save, which a file in the folder has to contain: proof that this host sees the
        folder of the controller.
      leaves: the leaves that this host writes: the spec of tensorstore of each, and its pieces, each the
        number of a copy and the first element in each dimension.
      settings: of the context of tensorstore.

    Returns:
      The size and the checksum of the manifest, which the controller has to find in the folder.
    """
    host = context().host
    copies = context().objects.pop(save)
    token = Path(folder, f".{save}")
    try:
        is_seen = token.read_text() == save
    except OSError:
        is_seen = False
    if not is_seen:
        raise CallRefused("folder", f"does not see the folder {folder}")
    with _errors_of_system(folder):
        _write_all(leaves, copies, settings)
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


def _write_all(leaves: Sequence[dict[str, Any]], copies: list[Any], settings: Any) -> None:
    with ArrayFiles(settings) as files:
        opened = [files.open(leaf["spec"], create=True, open=True) for leaf in leaves]
        for future, leaf in zip(opened, leaves, strict=True):
            store = future.result()
            for number, first in leaf["pieces"]:
                data = copies[number]
                # The write alone holds the copy, which is freed when it is done.
                copies[number] = None
                files.write(store[_block(first, data.shape)], data)
        files.finish()


def _read_all(leaves: Sequence[dict[str, Any]], settings: Any) -> list[Any]:
    call = context()
    shards: list[dict[Rows, Any]] = []
    with ArrayFiles(settings) as files:
        opened = [files.open(leaf["spec"], open=True, read=True) for leaf in leaves]
        for future, leaf, result, sharding in zip(opened, leaves, call.results, call.shardings, strict=True):
            store = future.result()
            reads: dict[Rows, Any] = {}
            for index in sharding.addressable_devices_indices_map(result.shape).values():
                bounds = rows_of(index, result.shape)
                if bounds not in reads:
                    first = [offset + start for offset, (start, _) in zip(leaf["first"], bounds, strict=True)]
                    reads[bounds] = files.read(store[_block(first, shape_of(bounds))])
            shards.append(reads)
        files.finish()
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
            data = np.asarray(reads[rows_of(index, result.shape)].result())
            if data.dtype != dtype:
                data = data.astype(dtype)
            placed.append(pjrt.put_shard(data, device, sharding))
    # All shards may be on other hosts of the island.
    return jax.make_array_from_single_device_arrays(result.shape, sharding, placed) if placed else None


def _block(first: Sequence[int], shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(start, start + size) for start, size in zip(first, shape, strict=True))


@contextlib.contextmanager
def _errors_of_system(folder: str) -> Any:
    """Raises operating system errors of tensorstore as `OSError`."""
    try:
        yield
    except ImportError as error:
        raise CallRefused("import", f"needs orbax-checkpoint: {error}") from None
    except (ValueError, RuntimeError) as error:
        if (of_system := system_error(error, folder)) is None:
            raise
        raise of_system from None

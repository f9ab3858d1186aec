"""Functions of workers for versions of the training state; `compiler.resilience.host_store` calls them.

Each training run has a folder. `write` is ordered among steps, so that the next step may donate the arrays;
`receive` and `fetch` read blocks of other hosts.

Clients of a service reach their own runs only: the name of a folder has the number of the client, which the
service assigns. Arguments of clients are checked, see `arguments.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Container, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np

from pathways.runtime.hosts.protocol.messages import KeepClients, MessageError
from pathways.runtime.hosts.worker.array_store import FailedArray
from pathways.runtime.hosts.worker.call_runner import CallRefused, context, of_package
from pathways.runtime.hosts.worker.large_memory import memory_of
from pathways.runtime.hosts.worker.worker import Worker
from pathways.runtime.local.recording import span
from pathways.runtime.plan.block_rows import index_of, rows_of, rows_within, shape_of
from pathways.runtime.resilience.records import VersionKey
from pathways.runtime.resilience.snapshots.arguments import (
    BlockName,
    CopyNumber,
    HostAddress,
    HostNumber,
    Position,
    Rows,
    RunName,
    Version,
    VersionRecord,
    checker,
)
from pathways.runtime.resilience.snapshots.block_file import SnapshotError, read_blocks, write_blocks
from pathways.runtime.resilience.snapshots.block_record import StateBlock
from pathways.runtime.resilience.snapshots.host_snapshots import (
    HostSnapshots,
    SnapshotInUseError,
    default_snapshot_folder,
)
from pathways.runtime.resilience.snapshots.leftovers import remove_leftovers
from pathways.runtime.resilience.snapshots.run_names import (
    client_of,
    client_run_name,
    has_exited,
    is_kept,
    is_over,
    remove_client_runs,
)
from pathways.runtime.resilience.snapshots.snapshot_streams import SnapshotStreams, StreamError
from pathways.runtime.resources.process_identity import this_machine
from pathways.runtime.resources.threads import start_thread
from pathways.runtime.xla import pjrt

SNAPSHOT_FAILURE = "snapshot"
"""`CallFailure.kind` of errors to write, read or receive snapshots."""

_EXIT_SECONDS = 20.0
"""Time that the process of an earlier worker of this host may take to exit after a kill."""

_OLD_SECONDS = 86400.0
"""Age at which snapshots are removed that a controller might still resume from."""

Bounds = tuple[tuple[int, int], ...]
"""The first row of a shard, and the one after the last, in each dimension."""


@dataclasses.dataclass
class _SnapshotRun:
    """Training run on this host.

    Attributes:
      snapshots: its versions on this host.
      live_versions: the versions that are still needed.
      fetched: blocks of other hosts for reads in progress, by name, for each lane.
    """

    name: str
    snapshots: HostSnapshots
    live_versions: Container[VersionKey]
    fetched: dict[int, dict[str, StateBlock]] = dataclasses.field(default_factory=dict)

    def copies(self, key: VersionKey) -> dict[str, int]:
        """Returns the number of a copy for each block of a version, by the name of the block."""
        stored = self.snapshots.versions().get(key)
        numbers = () if stored is None else sorted(stored.numbers)
        return {name: number for number in numbers for name in self.snapshots.names(key, number)}

    def report(self) -> list[tuple[int, int, list[str]]]:
        """Returns the step, the attempt and the names of the blocks of each readable version."""
        versions = []
        for key in self.snapshots.versions():
            with contextlib.suppress(SnapshotError):
                versions.append((key.step, key.attempt, [*self.copies(key)]))
        return versions

    def read(self, key: VersionKey, names: Collection[str]) -> dict[str, StateBlock]:
        """Returns blocks of a version; see `HostSnapshots.read`."""
        copies = self.copies(key)
        missing = next((name for name in names if name not in copies), None)
        if missing is not None:
            raise SnapshotError(f"{self.snapshots.path} has no block {missing} of {key}")
        blocks: dict[str, StateBlock] = {}
        for number in {copies[name] for name in names}:
            of_copy = [name for name in names if copies[name] == number]
            blocks |= self.snapshots.read(key, number, of_copy)
        return blocks


class _NewerVersions:
    """Set of versions: given ones and all after `newest`; all versions if that is None."""

    def __init__(self, keys: Collection[VersionKey], newest: VersionKey | None) -> None:
        self._keys = frozenset(keys)
        self._newest = newest

    def __contains__(self, key: object) -> bool:
        assert isinstance(key, VersionKey)
        is_newer = self._newest is None or (key.attempt, key.step) > (self._newest.attempt, self._newest.step)
        return key in self._keys or is_newer


@dataclasses.dataclass(frozen=True)
class _SnapshotMemory:
    """Memory of this host for snapshots, as configured at the start of the worker.

    Attributes:
      owner: the process that started the cluster.
      streams: the streams from and to other workers.
    """

    folder: Path
    owner: str
    streams: SnapshotStreams


_memory: _SnapshotMemory | None = None
_runs: dict[str, _SnapshotRun] = {}
# Disconnected clients of a service, whose calls may still run.
_released: set[int] = set()
_guard = threading.Lock()
"""Lock that is held while a run of a client is opened, or all runs of a client are removed."""


def serve_snapshots(worker: Worker) -> None:
    """Sets up a worker to exchange snapshots with others, and to remove the runs of disconnected clients."""
    global _memory
    config = worker.config
    folder = config.snapshot_folder
    _memory = _SnapshotMemory(
        default_snapshot_folder() if folder is None else Path(folder),
        config.owner,
        SnapshotStreams(worker.probes, config.heartbeat, _open_blocks, config.snapshot_rate),
    )
    worker.releases.append(release_client)
    worker.handlers["steps"][KeepClients] = _keep_clients


def release_client(client: int) -> None:
    """Removes all runs of a disconnected client of a service."""
    with _guard:
        _released.add(client)
        names = [name for name in _runs if client_of(name, _served().owner) == client]
        runs = [_runs.pop(name) for name in names]
    # In a thread, because the removal would delay steps.
    start_thread(functools.partial(_remove, runs, lambda other: other == client), "snapshots")


def _keep_clients(message: KeepClients) -> None:
    """Removes the runs of disconnected clients of the service that an earlier worker of this host left."""
    start_thread(functools.partial(_remove, (), lambda client: client not in message.clients), "snapshots")


def _remove(runs: Sequence[_SnapshotRun], has_ended: Callable[[int], bool]) -> None:
    memory = _served()
    for run in runs:
        with contextlib.suppress(OSError):
            run.snapshots.remove()
    with contextlib.suppress(OSError):
        remove_client_runs(memory.folder, memory.owner, has_ended)


def _for_clients[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Marks a function that clients call: checks its named arguments, and reports errors of snapshots."""
    check = checker(function)

    @of_package
    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        with _refusals():
            return function(*args, **check(kwargs))

    return checked


def _recorded[F: Callable[..., Any]](row: str, name: str) -> Callable[[F], F]:
    """Wraps a function so that traces show its calls as spans; formats `name` with the named arguments."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def recorded(*arguments: Any, **named: Any) -> Any:
            with span(row, name.format(**named), client=context().client):
                return function(*arguments, **named)

        return cast(F, recorded)

    return decorate


@_for_clients
def open_run(*, run: RunName) -> dict[str, Any]:
    """Opens the memory of a run on this host.

    Returns:
      The machine, the folder, the number of its file system, the bytes that versions may take there, and for
      each version its step, its attempt and the names of its blocks on this host.
    """
    memory, name = _served(), _folder_of(run)
    if name not in _runs:
        remove_leftovers(memory.folder, _OLD_SECONDS, lambda leftover: is_over(leftover.cluster))
        opened = _SnapshotRun(name, _open(memory.folder, name, context().host), _NewerVersions((), None))
        with _guard:
            if context().client not in _released:
                _runs[name] = opened
        if name not in _runs:
            opened.snapshots.remove()
    this_run = _run(run)
    if is_kept(name):
        this_run.snapshots.set_owner(memory.owner)
    device, count = this_run.snapshots.space()
    return {
        "machine": this_machine(),
        "device": device,
        "bytes": count,
        "folder": str(memory.folder),
        "versions": this_run.report(),
    }


@_for_clients
def read_records(*, run: RunName) -> list[tuple[int, int, str]]:
    """Returns the step, the attempt and the record of each committed version."""
    snapshots = _run(run).snapshots
    committed = [key for key, stored in snapshots.versions().items() if stored.is_committed]
    return [(key.step, key.attempt, snapshots.record(key).decode(errors="replace")) for key in committed]


@_for_clients
def free_memory(*, run: RunName) -> dict[str, int]:
    """Removes the runs of killed controllers; returns the bytes that versions may take.

    Not for clients of a service, which may not remove such runs.
    """
    opened = _run(run)
    if not context().client:
        folder = _served().folder
        remove_leftovers(
            folder, _OLD_SECONDS, lambda leftover: is_over(leftover.cluster) or has_exited(leftover.owner)
        )
    return {"bytes": opened.snapshots.space()[1]}


@_for_clients
@_recorded("snapshots", "snapshot {key[0]}")
def write(
    arrays: Sequence[Any],
    *,
    run: RunName,
    key: Version,
    copy: CopyNumber,
    names: list[BlockName],
    blocks: list[tuple[Position, Position, BlockName, Rows, Rows]],
) -> None:
    """Copies blocks of shards to the memory of this host.

    Args:
      key: the version.
      names: the name of each array.
      blocks: for each block its array, its shard there, its name, and its rows in the array and in the shard.
    """
    if not isinstance(arrays, list | tuple) or len(arrays) != len(names):
        raise SnapshotError(f"write: expected {len(names)} arrays, one for each name")
    for name, array in zip(names, arrays, strict=True):
        if isinstance(array, FailedArray):
            raise CallRefused("argument", f"{name} is an error: {array.error}")
        if not isinstance(array, jax.Array):
            raise CallRefused("argument", f"{name} is not on this host")
    written = [
        StateBlock(name, tuple(rows), _block(arrays, n, shard, name, rows, within))
        for n, shard, name, rows, within in blocks
    ]
    _run(run).snapshots.write(VersionKey(*key), copy, written)


@dataclasses.dataclass(frozen=True)
class _ShardBlock:
    """Block of a shard, which may be pending: NumPy reads it when it is written."""

    shard: jax.Array
    rows: Bounds

    @property
    def nbytes(self) -> int:
        """The bytes of the block."""
        return self.shard.dtype.itemsize * _size(self.rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.shard)[_index(self.rows)]


def _block(arrays: Sequence[Any], n: int, shard: int, name: str, rows: Rows, within: Rows) -> Any:
    """Returns the data of a block.

    Raises:
      SnapshotError: the shard does not exist, or lacks these rows.
    """
    shards = arrays[n].addressable_shards if n < len(arrays) else ()
    if shard >= len(shards):
        raise SnapshotError(
            f"write: block {name} is in shard {shard} of array {n}, which is not on this host"
        )
    data = shards[shard].data
    is_there = len(within) == data.ndim and all(
        start <= stop <= size for (start, stop), size in zip(within, data.shape, strict=True)
    )
    shape = [stop - start for start, stop in within]
    if not is_there or shape != [stop - start for start, stop in rows]:
        raise SnapshotError(
            f"write: block {name} has the rows {rows}, as {within} of a shard of shape {[*data.shape]}"
        )
    return data if data.shape == tuple(shape) else _ShardBlock(data, tuple(within))


@_for_clients
@_recorded("copies", "copy {key[0]} from host {host}")
def receive(
    *,
    run: RunName,
    key: Version,
    copy: CopyNumber,
    host: HostNumber,
    address: HostAddress,
    blocks: list[BlockName],
) -> None:
    """Copies blocks of another host to the memory of this one.

    Args:
      key: the version.
      address: the address of its `Probes`; a process there that is not a worker of the cluster is refused.
    """
    version, opened = VersionKey(*key), _run(run)
    with _served().streams.read(host, address, opened.name, version, blocks) as (count, chunks):

        def needed() -> Any:
            for chunk in chunks:
                if version not in opened.live_versions:
                    raise SnapshotError(f"{version} was dropped while it was received")
                yield chunk

        opened.snapshots.receive(version, copy, count, needed())


@_for_clients
@_recorded("restores", "fetch {key[0]} from host {host}")
def fetch(
    *, run: RunName, key: Version, host: HostNumber, address: HostAddress, blocks: list[BlockName]
) -> dict[str, Any]:
    """Reads blocks of another host for the next `read` in the same lane.

    Args:
      key: the version.
      address: see `receive`.

    Returns:
      An empty dictionary; after an error its text, and whether the other host cannot read the blocks itself.
    """
    try:
        opened = _run(run)
        with _served().streams.read(host, address, opened.name, VersionKey(*key), blocks) as (_, chunks):
            file = os.memfd_create("snapshot")
            try:
                for chunk in chunks:
                    os.write(file, chunk)
                fetched = read_blocks(file, f"snapshot of host {host}", blocks)
                opened.fetched.setdefault(context().lane, {}).update(fetched)
            finally:
                os.close(file)
    except StreamError as error:
        return {"why": str(error), "is_corrupt": error.is_corrupt}
    except SnapshotError as error:
        return {"why": str(error), "is_corrupt": False}
    return {}


@_for_clients
@_recorded("restores", "read {key[0]}")
def read(*, run: RunName, key: Version, leaves: list[list[tuple[Rows, BlockName]]]) -> list[Any]:
    """Returns the arrays of a version.

    Args:
      key: the version.
      leaves: for each array the rows and the name of each of its blocks; its shards consist of whole blocks.
    """
    opened, call = _run(run), context()
    # Blocks in other lanes are of other reads: a save to disk may run beside a restore.
    fetched = opened.fetched.pop(call.lane, {})
    if len(leaves) != len(call.results):
        raise SnapshotError(f"read: blocks of {len(leaves)} arrays for {len(call.results)}")
    # For each array and each of its devices on this host, the blocks of the shard.
    named = [
        {shard: _blocks_of(shard, leaf) for shard in _bounds(sharding, result.shape)}
        for leaf, result, sharding in zip(leaves, call.results, call.shardings, strict=True)
    ]
    needed = {name for shards in named for blocks in shards.values() for _, name in blocks}
    data = fetched | opened.read(VersionKey(*key), needed - fetched.keys())
    return [
        _array(
            result,
            sharding,
            {shard: [(rows, data[name]) for rows, name in blocks] for shard, blocks in shards.items()},
        )
        for shards, result, sharding in zip(named, call.results, call.shardings, strict=True)
    ]


@_for_clients
def map_blocks(*, run: RunName, key: Version, save: BlockName, blocks: list[BlockName]) -> None:
    """Maps blocks of a version for `checkpoints.write`; they stay when the version is removed.

    Args:
      key: the version.
      save: the name of the save; see `checkpoints`.
      blocks: the names of the blocks, in order.
    """
    stored = _run(run).read(VersionKey(*key), blocks)
    context().objects[save] = [stored[name].data for name in blocks]


@_for_clients
def commit(*, run: RunName, key: Version, record: VersionRecord) -> None:
    """Records that a version is committed, if this host has blocks of it.

    Args:
      key: the version.
      record: the record from which another controller can resume.
    """
    snapshots = _run(run).snapshots
    if VersionKey(*key) in snapshots.versions():
        snapshots.commit(VersionKey(*key), record.encode())


@_for_clients
def keep(*, run: RunName, keys: list[Version], newest: Version | None) -> None:
    """Removes the versions up to `newest`, except `keys`.

    Args:
      keys: the versions to keep.
      newest: the last version that may be removed; None to remove none.
    """
    opened = _run(run)
    opened.live_versions = _NewerVersions(
        [VersionKey(*key) for key in keys], None if newest is None else VersionKey(*newest)
    )
    opened.snapshots.keep(opened.live_versions)


@_for_clients
def close_run(*, run: RunName) -> None:
    """Removes all versions of a run on this host."""
    with _guard:
        opened = _runs.pop(_folder_of(run), None)
    if opened is not None:
        opened.snapshots.remove()


def _open(path: Path, run: str, host: int) -> HostSnapshots:
    """Opens the snapshots of this host; waits for the exit of an earlier worker."""
    deadline = time.monotonic() + _EXIT_SECONDS
    while True:
        try:
            return HostSnapshots(path, run, host)
        except SnapshotInUseError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _served() -> _SnapshotMemory:
    assert _memory is not None, "serve_snapshots was not called"
    return _memory


def _folder_of(run: str) -> str:
    """Returns the name of the folder of a run, which no other client of a service can name."""
    client = context().client
    return client_run_name(_served().owner, client, run) if client else run


def _run(run: str) -> _SnapshotRun:
    """Returns an open run of the caller."""
    return _opened(_folder_of(run))


def _opened(name: str) -> _SnapshotRun:
    if (opened := _runs.get(name)) is None:
        raise SnapshotError(f"run {name} is closed")
    return opened


def _open_blocks(name: str, key: VersionKey, blocks: Collection[str]) -> int:
    """Returns a file with blocks of a version: the file of a copy, if it has these blocks alone."""
    opened = _opened(name)
    copies = opened.copies(key)
    for number in {copies[name] for name in blocks if name in copies}:
        if set(opened.snapshots.names(key, number)) == set(blocks):
            return opened.snapshots.open_copy(key, number)
    file = os.memfd_create("snapshot")
    try:
        write_blocks(file, opened.read(key, blocks).values())
    except BaseException:
        os.close(file)
        raise
    return file


@contextlib.contextmanager
def _refusals() -> Any:
    """Reports errors of snapshots without a traceback."""
    try:
        yield
    except (SnapshotError, StreamError, MessageError) as error:
        raise CallRefused(SNAPSHOT_FAILURE, str(error)) from None


def _bounds(sharding: Any, shape: Sequence[int]) -> list[Bounds]:
    """Returns for each device of this host the bounds of its shard in each dimension."""
    indices = sharding.addressable_devices_indices_map(tuple(shape)).values()
    return [rows_of(index, shape) for index in indices]


def _index(rows: Sequence[tuple[int, int]]) -> Any:
    """Returns the index of rows; ends with `...`, so that a scalar array is indexed to an array."""
    return (*index_of(rows), ...)


def _blocks_of(shard: Bounds, blocks: Sequence[tuple[Rows, str]]) -> list[tuple[Bounds, str]]:
    """Returns the rows in a shard and the name of each of its blocks.

    Args:
      blocks: the rows and the name of each block of the array.

    Raises:
      SnapshotError: the blocks do not cover the shard.
    """
    within = {
        rows_within(rows, shard): name
        for rows, name in blocks
        if len(rows) == len(shard)
        and all(
            first <= start <= stop <= last for (start, stop), (first, last) in zip(rows, shard, strict=True)
        )
    }
    if not within or sum(_size(rows) for rows in within) != _size(shard):
        raise SnapshotError(f"read: no blocks have the rows {[*shard]}")
    return [*within.items()]


def _size(bounds: Bounds) -> int:
    return math.prod(shape_of(bounds))


def _array(result: Any, sharding: Any, shards: dict[Bounds, list[tuple[Bounds, StateBlock]]]) -> Any:
    """Returns an array from the blocks of each of its shards.

    Raises:
      SnapshotError: a block has another type.
    """
    dtype = jax.numpy.dtype(result.dtype)
    for bounds, block in (shard_block for blocks in shards.values() for shard_block in blocks):
        if block.data.dtype != dtype or block.data.shape != shape_of(bounds):
            raise SnapshotError(
                f"read: block {block.name} is {block.data.dtype}{[*block.data.shape]}, and the array is "
                f"{dtype} with the rows {[*bounds]}"
            )
    placed = []
    # Without x64 JAX would narrow 64-bit elements.
    with jax.enable_x64(True):
        for device, shard in zip(
            sharding.addressable_devices_indices_map(tuple(result.shape)),
            _bounds(sharding, result.shape),
            strict=True,
        ):
            # Fresh memory: JAX uses aligned memory without a copy, and a later step may donate it.
            memory = memory_of(dtype.itemsize * _size(shard))
            data = memory.view(dtype).reshape(shape_of(shard))
            for rows, block in shards[shard]:
                data[_index(rows)] = block.data
            placed.append(pjrt.put_shard(data, device, sharding))
    # All shards may be on other hosts of the island.
    return jax.make_array_from_single_device_arrays(result.shape, sharding, placed) if placed else None

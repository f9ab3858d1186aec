"""Versions of the training state in the memory of this host: called by `compiler.resilience.host_store`.

Each training run has a folder of its own there (`runtime.snapshots`). `write` is ordered among steps, so that
the arrays may be donated right after it; `receive` and `fetch` read blocks of other hosts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import time
from collections.abc import Callable, Collection, Container, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np

from pathways.runtime.hosts.worker.array_store import FailedArray
from pathways.runtime.hosts.worker.call_runner import CallRefused, context, of_package
from pathways.runtime.hosts.worker.probes import Probes
from pathways.runtime.hosts.worker.snapshot_streams import SnapshotStreams, StreamError
from pathways.runtime.local.recording import span
from pathways.runtime.resilience.records import VersionKey
from pathways.runtime.snapshots.block_file import read_blocks, write_blocks
from pathways.runtime.snapshots.block_record import StateBlock
from pathways.runtime.snapshots.host_snapshots import HostSnapshots, default_snapshot_folder
from pathways.runtime.snapshots.leftovers import remove_leftovers
from pathways.runtime.snapshots.private_folder import SnapshotError, SnapshotInUseError

SNAPSHOT_FAILURE = "snapshot"
"""`CallFailure.kind` of snapshots that a host cannot write, read or receive."""

_RUN = re.compile(r"run-([0-9a-f]+)-(\d+)-[0-9a-f]+")

_EXIT_SECONDS = 20.0
"""Time that the process of an earlier worker of this host may take to exit, after it was killed."""

_OLD_SECONDS = 86400.0
"""Age at which snapshots are removed if this machine cannot tell whether their run has ended."""


@dataclasses.dataclass
class _SnapshotRun:
    """Training run.

    Attributes:
      snapshots: its versions on this host.
      rate: limit on the bytes per second that this host sends of them; None for no limit.
      kept: the versions that are still needed.
      fetched: blocks of other hosts of the version that is being restored, by name.
    """

    snapshots: HostSnapshots
    rate: float | None
    kept: Container[VersionKey]
    fetched: dict[str, StateBlock] = dataclasses.field(default_factory=dict)

    def copies(self, key: VersionKey) -> dict[str, int]:
        """Returns the number of a copy for each block of a version, by the name of the block."""
        stored = self.snapshots.versions().get(key)
        numbers = () if stored is None else sorted(stored.numbers)
        return {name: number for number in numbers for name in self.snapshots.names(key, number)}

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
    """Set of versions: some, and all that were begun after `newest`; all of them if that is None."""

    def __init__(self, keys: Collection[VersionKey], newest: VersionKey | None) -> None:
        self._keys = frozenset(keys)
        self._newest = newest

    def __contains__(self, key: object) -> bool:
        assert isinstance(key, VersionKey)
        is_newer = self._newest is None or (key.attempt, key.step) > (
            self._newest.attempt,
            self._newest.step,
        )
        return key in self._keys or is_newer


_runs: dict[str, _SnapshotRun] = {}
_streams: list[SnapshotStreams] = []


def serve_snapshots(probes: Probes, heartbeat: float) -> None:
    """Starts to exchange snapshots with other workers.

    Args:
      probes: the connections to other workers.
      heartbeat: seconds after which a silent worker is lost.
    """
    _streams[:] = [SnapshotStreams(probes, heartbeat, _open_blocks, lambda run: _run(run).rate)]


def _recorded[F: Callable[..., Any]](row: str, name: str) -> Callable[[F], F]:
    """Has calls of a function recorded as spans of a trace, with the named arguments in their names."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def recorded(*arguments: Any, **named: Any) -> Any:
            with span(row, name.format(**named), client=context().client):
                return function(*arguments, **named)

        return cast(F, recorded)

    return decorate


@of_package
def open_run(*, run: str, folder: str | None, rate: float | None) -> dict[str, Any]:
    """Opens the memory of a run on this host.

    Args:
      run: the name of the run.
      folder: `HostOptions.snapshot_folder`.
      rate: `HostOptions.snapshot_rate`.

    Returns:
      The machine, the folder, the number of its file system, the bytes that versions may take there, and for
      each version its step, its attempt and the names of its blocks on this host.
    """
    path = default_snapshot_folder() if folder is None else Path(folder)
    with _refusals():
        if run not in _runs:
            remove_leftovers(path, _OLD_SECONDS, _is_over)
            _runs[run] = _SnapshotRun(_open(path, run, context().host), rate, _NewerVersions((), None))
        opened = _runs[run]
        device, count = opened.snapshots.space()
        versions = [[key.step, key.attempt, [*opened.copies(key)]] for key in opened.snapshots.versions()]
        return {
            "machine": this_machine(),
            "device": device,
            "bytes": count,
            "folder": str(path),
            "versions": versions,
        }


@of_package
@_recorded("snapshots", "snapshot {key[0]}")
def write(
    arrays: Sequence[Any],
    *,
    run: str,
    key: tuple[int, int],
    copy: int,
    names: list[str],
    blocks: list[tuple[int, int, str, list[tuple[int, int]]]],
) -> None:
    """Copies shards to the memory of this host.

    Args:
      arrays: the arrays of the island.
      run: the name of the run.
      key: the version.
      copy: the number of the copy.
      names: the name of each array.
      blocks: for each block its array, its shard there, its name, and its rows in each dimension.
    """
    for name, array in zip(names, arrays, strict=True):
        if isinstance(array, FailedArray):
            raise CallRefused("argument", f"{name} is an error: {array.error}")
    written = [
        StateBlock(
            name,
            tuple((start, stop) for start, stop in index),
            arrays[n].addressable_shards[shard].data,
        )
        for n, shard, name, index in blocks
    ]
    with _refusals():
        _run(run).snapshots.write(VersionKey(*key), copy, written)


@of_package
@_recorded("copies", "copy {key[0]} from host {host}")
def receive(*, run: str, key: tuple[int, int], copy: int, host: int, address: str, blocks: list[str]) -> None:
    """Copies blocks of another host to the memory of this one.

    Args:
      run: the name of the run.
      key: the version.
      copy: the number of the copy.
      host: the other host.
      address: the address of its `Probes`.
      blocks: the names of the blocks.
    """
    version, own = VersionKey(*key), _run(run)
    with _refusals(), _streams[0].read(host, address, run, version, blocks) as (count, chunks):

        def needed() -> Any:
            for chunk in chunks:
                if version not in own.kept:
                    raise SnapshotError(f"{version} was dropped while it was received")
                yield chunk

        own.snapshots.receive(version, copy, count, needed())


@of_package
@_recorded("restores", "fetch {key[0]} from host {host}")
def fetch(*, run: str, key: tuple[int, int], host: int, address: str, blocks: list[str]) -> dict[str, Any]:
    """Reads blocks of another host, for a `read` that follows.

    Args:
      run: the name of the run.
      key: the version.
      host: the other host.
      address: the address of its `Probes`.
      blocks: the names of the blocks.

    Returns:
      An empty dictionary; or the error, and whether the other host cannot read the blocks itself.
    """
    try:
        with _streams[0].read(host, address, run, VersionKey(*key), blocks) as (_, chunks):
            file = os.memfd_create("snapshot")
            try:
                for chunk in chunks:
                    os.write(file, chunk)
                _run(run).fetched |= read_blocks(file, f"snapshot of host {host}", blocks)
            finally:
                os.close(file)
    except StreamError as error:
        return {"why": str(error), "is_corrupt": error.is_corrupt}
    except SnapshotError as error:
        return {"why": str(error), "is_corrupt": False}
    return {}


@of_package
@_recorded("restores", "read {key[0]}")
def read(*, run: str, key: tuple[int, int], leaves: list[list[tuple[list[list[int]], str]]]) -> list[Any]:
    """Returns the arrays of a version.

    Args:
      run: the name of the run.
      key: the version.
      leaves: for each array the rows and the name of each of its blocks.
    """
    own, call = _run(run), context()
    fetched, own.fetched = own.fetched, {}
    names = [{tuple(tuple(side) for side in index): name for index, name in leaf} for leaf in leaves]
    results = list(zip(names, call.results, call.shardings, strict=True))
    needed = {
        by_index[bounds]
        for by_index, result, sharding in results
        for bounds in _bounds(sharding, result.shape)
    }
    with _refusals():
        blocks = fetched | own.read(VersionKey(*key), needed - fetched.keys())
    return [
        _array(
            result,
            sharding,
            {bounds: blocks[by_index[bounds]].data for bounds in _bounds(sharding, result.shape)},
        )
        for by_index, result, sharding in results
    ]


@of_package
def keep(*, run: str, keys: list[tuple[int, int]], newest: tuple[int, int] | None) -> None:
    """Removes the versions up to `newest`, except some.

    Args:
      run: the name of the run.
      keys: the versions that are kept.
      newest: the last version that may be removed; None to remove none.
    """
    own = _run(run)
    own.kept = _NewerVersions(
        [VersionKey(*key) for key in keys], None if newest is None else VersionKey(*newest)
    )
    own.snapshots.keep(own.kept)


@of_package
def close_run(*, run: str) -> None:
    """Removes all versions of a run on this host."""
    if run in _runs:
        _runs.pop(run).snapshots.remove()


def this_machine() -> str:
    """Returns a name of this machine, which changes when it restarts."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")


def run_name(token: str) -> str:
    """Returns the name of a run of this process; `token` distinguishes its runs."""
    return f"run-{this_machine()}-{os.getpid()}-{token}"


def _is_over(run: str) -> bool:
    """Returns whether the controller of a run was a process of this machine, and has exited."""
    match = _RUN.fullmatch(run)
    return match is not None and match[1] == this_machine() and not Path("/proc", match[2]).exists()


def _open(path: Path, run: str, host: int) -> HostSnapshots:
    """Opens the snapshots of this host; waits for an earlier worker that still has them."""
    deadline = time.monotonic() + _EXIT_SECONDS
    while True:
        try:
            return HostSnapshots(path, run, host)
        except SnapshotInUseError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _run(name: str) -> _SnapshotRun:
    if name not in _runs:
        raise SnapshotError(f"run {name} is closed")
    return _runs[name]


def _open_blocks(run: str, key: VersionKey, blocks: Collection[str]) -> int:
    """Returns a file with blocks of a version: the file of a copy, if that has no other blocks."""
    own = _run(run)
    copies = own.copies(key)
    for number in {copies[name] for name in blocks if name in copies}:
        if set(own.snapshots.names(key, number)) == set(blocks):
            return own.snapshots.open_copy(key, number)
    file = os.memfd_create("snapshot")
    try:
        write_blocks(file, own.read(key, blocks).values())
    except BaseException:
        os.close(file)
        raise
    return file


@contextlib.contextmanager
def _refusals() -> Any:
    """Reports errors of snapshots without a traceback."""
    try:
        yield
    except (SnapshotError, StreamError) as error:
        raise CallRefused(SNAPSHOT_FAILURE, str(error)) from None


def _bounds(sharding: Any, shape: Sequence[int]) -> list[tuple[tuple[int, int], ...]]:
    """Returns for each device of this host the bounds of its shard in each dimension."""
    return [
        tuple(side.indices(count)[:2] for side, count in zip(index, shape, strict=True))
        for index in sharding.addressable_devices_indices_map(tuple(shape)).values()
    ]


def _array(result: Any, sharding: Any, blocks: dict[Any, np.ndarray]) -> Any:
    dtype = jax.numpy.dtype(result.dtype)
    placed = []
    # Without x64 JAX would narrow 64-bit elements.
    with jax.enable_x64(True):
        for device, bounds in zip(
            sharding.addressable_devices_indices_map(tuple(result.shape)),
            _bounds(sharding, result.shape),
            strict=True,
        ):
            # A copy: JAX may use the given memory without one, and a later step may donate it.
            placed.append(jax.device_put(np.array(blocks[bounds], dtype), device))
    # All shards may be on other hosts of the island.
    return jax.make_array_from_single_device_arrays(result.shape, sharding, placed) if placed else None

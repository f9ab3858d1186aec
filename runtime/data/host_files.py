"""Files of arrays on hosts: each host writes and reads its shards itself, by `runtime.data.checkpoints`."""

from __future__ import annotations

import dataclasses
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pathways.runtime.control.records.errors import HostError
from pathways.runtime.control.records.step import FunctionCall
from pathways.runtime.data import checkpoints
from pathways.runtime.hosts.client.array import Array
from pathways.runtime.hosts.client.calls import call_of, lanes
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.cluster.host import HostGang, Location, WorkerHandle
from pathways.runtime.hosts.protocol import plain
from pathways.runtime.hosts.protocol.messages import KeptArray, ResultArray
from pathways.runtime.hosts.protocol.programs import WHOLE_ARRAY
from pathways.runtime.hosts.protocol.shards import different_shards

_MODULE = checkpoints.__name__

_NAME = "pw.checkpoint"
"""Name of the calls in messages."""

_SEEN_SECONDS = 10.0
"""Time until this process sees a file that a host has written, over a network."""


class CheckpointFailedError(OSError):
    """Failure to write or read a checkpoint, with the `errno` and `filename` of the failed process."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclasses.dataclass(frozen=True)
class _CopiedShard:
    """Shard that a host writes.

    Attributes:
      leaf: the number of its array.
      array: the number of the array among the arrays of its gang.
      shard: its index among the shards of the host.
      first: its first element in each dimension of the whole array.
    """

    leaf: int
    array: int
    shard: int
    first: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class SnapshotVersion:
    """Version of a state in the memory of hosts.

    Attributes:
      key: the version.
      module: the module of workers whose `map_blocks` maps its blocks for a save.
    """

    controller: HostSession
    run: str
    key: tuple[int, int]
    module: str


@dataclasses.dataclass(frozen=True)
class SnapshotBlock:
    """Block of an array in the memory of a host.

    Attributes:
      first: its first element in each dimension of the array.
    """

    host: int
    name: str
    first: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class SnapshotArray:
    """Array in the memory of hosts, which `save` has them write from there.

    Attributes:
      version: the version that it belongs to.
      shape: its shape.
      dtype: its dtype.
      chunk_shape: the shape of chunks in the file; each block consists of whole ones.
      blocks: the blocks, which do not overlap.
    """

    version: SnapshotVersion
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_shape: tuple[int, ...]
    blocks: tuple[SnapshotBlock, ...]

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class RestoredLeaf:
    """Stand-in for an array on hosts that Orbax restores.

    Attributes:
      aval: its type.
      controller: the controller of the hosts.
      locations: the locations of its copies.
    """

    aval: Any
    controller: HostSession
    locations: tuple[Location, ...]

    def put(self, value: np.ndarray[Any, Any]) -> Array:
        """Sends an array of this process there, and returns it."""
        array = Array(self.controller, self.aval)
        for location in self.locations:
            array.put(location, value)
        return array


class HostSave:
    """Save of arrays on hosts: copies them at once, and writes them when Orbax has created the folder.

    Args:
      controller: the controller of the hosts.
      arrays: the arrays.
      names: their names in messages.

    Raises:
      HostError: a host was lost.
      RuntimeError: an array was deleted.
    """

    def __init__(self, controller: HostSession, arrays: Sequence[Array], names: Sequence[str]) -> None:
        self._controller = controller
        self._name = f"pathways-{secrets.token_hex(8)}"
        self._lane = next(lanes)
        self._types = [(tuple(array.shape), array.dtype) for array in arrays]
        self._shapes: list[tuple[int, ...]] = []
        self._pieces: dict[WorkerHandle, list[_CopiedShard]] = {}
        held: dict[HostGang, list[tuple[int, Location]]] = {}
        for number, array in enumerate(arrays):
            self._share(number, array, held)
        try:
            self._copies = [self._copy(gang, arrays, names, places) for gang, places in held.items()]
        except BaseException:
            self.drop()
            raise

    def _share(self, number: int, array: Array, held: dict[HostGang, list[tuple[int, Location]]]) -> None:
        """Assigns the shards of an array to hosts: of equal shards to the host with least to write."""
        # If all are lost, the call on one of them raises the error that names its host.
        live = [location for location in array.locations if not location.gang.is_lost()]
        locations = live or [*array.locations]
        # Raises the error of an array that was deleted just now.
        array.is_ready()
        complete = [location for location in locations if location.block == WHOLE_ARRAY]
        # Copies may be divided differently.
        blocks = {location.block: location for location in locations if _is_cut_as(location, locations[0])}
        copies = [min(complete, key=self._load)] if complete else [*blocks.values()]
        shape: tuple[int, ...] = ()
        for location in copies:
            saved = held.setdefault(location.gang, [])
            saved.append((number, location))
            size, offset = location.block_of(array.shape)
            shards = dict(different_shards(size, location.placement))
            for host, positions in location.holders.items():
                for n, position in enumerate(positions):
                    if position in shards:
                        bounds = shards[position]
                        # All shards have this shape: `is_written_there` rejects arrays with uneven ones.
                        shape = tuple(side.stop - side.start for side in bounds)
                        first = tuple(at + side.start for at, side in zip(offset, bounds, strict=True))
                        self._pieces.setdefault(host, []).append(
                            _CopiedShard(number, len(saved) - 1, n, first)
                        )
        self._shapes.append(shape)

    def _load(self, location: Location) -> int:
        return max(self._bytes(host) for host in location.holders)

    def _bytes(self, host: WorkerHandle) -> int:
        return sum(
            math.prod(self._shapes[piece.leaf]) * np.dtype(self._types[piece.leaf][1]).itemsize
            for piece in self._pieces.get(host, ())
            if piece.leaf < len(self._shapes)
        )

    def _copy(
        self,
        gang: HostGang,
        saved: Sequence[Array],
        names: Sequence[str],
        places: Sequence[tuple[int, Location]],
    ) -> FunctionCall:
        hosts = [host for host in gang.hosts if host in self._pieces]
        shards = {str(h.index): [(piece.array, piece.shard) for piece in self._pieces[h]] for h in hosts}
        with self._controller.order:
            arrays = [KeptArray(saved[n].number_at(location), None) for n, location in places]
            tree = {"t": [{"l": [*range(len(arrays))]}]}
            arguments = plain.encode(
                [[], tree, {"save": self._name, "names": [names[n] for n, _ in places], "shards": shards}],
                _NAME,
            )
            message = call_of(f"{_MODULE}:copy", 0, self._lane, arrays, arguments, None)
            producers = [saved[n].step_at(location) for n, location in places]
            return self._controller.call(f"{_NAME}: copy", gang, hosts, message, producers)

    def drop(self) -> None:
        """Frees the copies without writing them."""
        self._call_all("drop", {"save": self._name})

    def write(self, names: Mapping[int, str], folder: Path, spec: Callable[..., Any], settings: Any) -> None:
        """Makes hosts write all shards, and returns when all of them have finished.

        Args:
          names: the name of each array there.
          folder: the folder, which exists.
          spec: a function from the name, shapes, dtype and host of a leaf to the spec of tensorstore.
          settings: the settings of the context of tensorstore.

        Raises:
          OSError: a host did not write its shards, or did elsewhere; names host and folder.
        """
        # Hosts read this file first: on another machine the path may belong to a different folder.
        token = folder / f".{self._name}"
        try:
            try:
                token.write_text(self._name)
            except OSError as error:
                wrong = CheckpointFailedError(f"the controller: {error}: {token}")
                wrong.errno, wrong.filename = error.errno, str(token)
                raise wrong from error
            # An incomplete array is not committed.
            _raise_first(_failures(self._controller, self._copies), folder)
            named = {"save": self._name, "folder": str(folder), "settings": settings}
            arguments_by_host = {
                host: {"leaves": self._leaves(host, pieces, names, spec)}
                for host, pieces in self._pieces.items()
            }
            calls, lost = self._call_all("write", named, arguments_by_host)
            # A host may continue to write until then.
            _raise_first([*lost, *_failures(self._controller, calls)], folder)
            for call in calls:
                for index, answer in call.answers.items():
                    self._check_seen(index, plain.decode(answer.value), folder)
        finally:
            token.unlink(missing_ok=True)

    def _leaves(
        self,
        host: WorkerHandle,
        pieces: Sequence[_CopiedShard],
        names: Mapping[int, str],
        spec: Callable[..., Any],
    ) -> list[dict[str, Any]]:
        copies_by_leaf: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        for copy, piece in enumerate(pieces):
            copies_by_leaf.setdefault(piece.leaf, []).append((copy, piece.first))
        return [
            {
                "spec": spec(names[leaf], *self._types[leaf], self._shapes[leaf], f"host{host.index}"),
                "pieces": copies,
            }
            for leaf, copies in copies_by_leaf.items()
        ]

    def _call_all(
        self,
        function: str,
        named: dict[str, Any],
        arguments_by_host: Mapping[WorkerHandle, dict[str, Any]] | None = None,
        module: str = _MODULE,
    ) -> tuple[list[FunctionCall], list[HostError]]:
        """Calls a function on all hosts with shards, with the arguments of each.

        Returns:
          The calls, and an error for each lost host.
        """
        calls, lost = [], []
        for host in self._pieces:
            arguments = plain.encode([[], {"t": []}, named | (arguments_by_host or {}).get(host, {})], _NAME)
            message = call_of(f"{module}:{function}", 0, self._lane, [], arguments, None)
            try:
                calls.append(self._controller.call(f"{_NAME}: {function}", host.gang, [host], message))
            except HostError as error:
                lost.append(error)
        return calls, lost

    def _check_seen(self, index: int, written: dict[str, int], folder: Path) -> None:
        # This process merges the files of the hosts, which may appear late on a network file system.
        folder_of_host = folder / f"ocdbt.process_host{index}"
        deadline = time.monotonic() + _SEEN_SECONDS
        while checkpoints.manifest(folder_of_host) != written:
            if time.monotonic() > deadline:
                raise CheckpointFailedError(
                    f"{self._controller.hosts[index]} has written {folder_of_host}, "
                    "but this process does not see it"
                )
            time.sleep(0.05)


class StoredSave(HostSave):
    """Save of arrays in the memory of hosts, which need no copy: written, they are freed with their version.

    Raises:
      HostError: a host was lost.
    """

    def __init__(self, arrays: Sequence[SnapshotArray]) -> None:
        version = arrays[0].version
        self._controller = version.controller
        self._name = f"pathways-{secrets.token_hex(8)}"
        self._lane = next(lanes)
        self._types = [(array.shape, array.dtype) for array in arrays]
        self._shapes = [array.chunk_shape for array in arrays]
        self._pieces = {}
        names: dict[WorkerHandle, list[str]] = {}
        for leaf, array in enumerate(arrays):
            for block in array.blocks:
                host = self._controller.hosts[block.host]
                self._pieces.setdefault(host, []).append(_CopiedShard(leaf, 0, 0, block.first))
                names.setdefault(host, []).append(block.name)
        named = {"save": self._name, "run": version.run, "key": version.key}
        arguments_by_host = {host: {"blocks": blocks} for host, blocks in names.items()}
        self._copies, lost = self._call_all("map_blocks", named, arguments_by_host, version.module)
        if lost:
            # Blocks that are mapped take memory, though their version is dropped.
            self.drop()
            raise lost[0]


def arrays_read_by_hosts(
    targets: Sequence[RestoredLeaf], names: Sequence[str], folder: Path, spec: Any, settings: Any
) -> list[Array]:
    """Makes hosts read arrays from a folder, and returns them when all have.

    Raises:
      OSError: a host cannot; names host and folder.
    """
    controller = targets[0].controller
    places_by_gang: dict[HostGang, list[tuple[int, Location]]] = {}
    for number, target in enumerate(targets):
        for location in target.locations:
            places_by_gang.setdefault(location.gang, []).append((number, location))
    arrays = [Array(controller, target.aval) for target in targets]
    specs = [spec(name) for name in names]
    # A host that finds another manifest at this path sees a different folder.
    seen = checkpoints.manifest(folder)
    calls, lost = [], []
    for gang, places in places_by_gang.items():
        outputs: list[ResultArray] = []
        leaves = []
        for number, location in places:
            aval = targets[number].aval
            shape, first = location.block_of(aval.shape)
            outputs.append(ResultArray(shape, np.dtype(aval.dtype).name, location.placement))
            leaves.append({"spec": specs[number], "first": first})
        named = {
            "folder": str(folder),
            "seen": None if seen["size"] < 0 else seen,
            "leaves": leaves,
            "settings": settings,
        }
        arguments = plain.encode([[], {"t": []}, named], _NAME)
        structure = plain.encode({"l": [*range(len(outputs))]}, _NAME)
        message = call_of(f"{_MODULE}:read", 0, next(lanes), [], arguments, tuple(outputs), structure)
        holders = {host for _, location in places for host in location.holders}
        hosts = [host for host in gang.hosts if host in holders]
        try:
            call = controller.call(f"{_NAME}: read", gang, hosts, message)
        except HostError as error:
            lost.append(error)
            continue
        for n, (number, location) in enumerate(places):
            arrays[number].add_copy(location, call.number + 1 + n, call)
        calls.append(call)
    _raise_first([*lost, *_failures(controller, calls)], folder)
    return arrays


def _failures(controller: HostSession, calls: Sequence[FunctionCall]) -> list[Exception]:
    """Returns the errors of calls that have all finished."""
    failures: list[Exception] = []
    for call in calls:
        try:
            controller.wait_for_call(call)
        except HostError as error:
            failures.append(error)
            continue
        for index, failure in sorted(call.failures().items()):
            answer = call.answers.get(index)
            host = controller.hosts[index]
            if answer is None or answer.failure is None:
                failures.append(failure.error())
                continue
            problem = answer.failure
            text = (
                f"{problem.type}: {problem.text}" if problem.errno is None and problem.type else problem.text
            )
            wrong = CheckpointFailedError(f"{host} {text}" if problem.kind == "folder" else f"{host}: {text}")
            wrong.errno, wrong.filename = problem.errno, problem.path
            failures.append(wrong)
    return failures


def _raise_first(failures: Sequence[Exception], folder: Path) -> None:
    # A lost host explains missing files, whatever errors other hosts report.
    for failure in sorted(failures, key=lambda failure: not isinstance(failure, HostError)):
        if isinstance(failure, HostError):
            raise CheckpointFailedError(f"{failure.record().text} (it had shards of {folder})") from failure
        raise failure


def _is_cut_as(location: Location, other: Location) -> bool:
    return (location.block.count, location.block.dim) == (other.block.count, other.block.dim)

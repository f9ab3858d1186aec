"""Batches assembled on hosts, each from the rows that its devices read; called by `compiler.data.host_input`.

An input gives rows by their numbers (`NumberedRows`), or has shards that are read one row after the other
(`ShardedRows`). Either way the contents of a batch do not depend on which host assembles it.
"""

from __future__ import annotations

import base64
import dataclasses
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from pathways.runtime.hosts.protocol import plain
from pathways.runtime.hosts.worker.call_runner import CallRefused, context, numpy_of, of_package
from pathways.runtime.hosts.worker.large_memory import memory_of
from pathways.runtime.plan.block_rows import rows_of, shape_of
from pathways.runtime.xla import pjrt

_BYTES = "bytes"
"""Key of a position that is bytes, in base64."""

_SPARE = 4
"""Number of buffers of one size that are kept for later batches."""


class InputEnded(Exception):
    """Error of an input that has no full batch left."""


class WrongInput(TypeError):
    """Error of an input that lacks the methods to read rows from it."""


class Rows(Protocol):
    """Source of the rows of batches."""

    def of(self, batch: int, indices: Iterable[int]) -> Iterator[tuple[int, Any]]:
        """Yields some rows of a batch, each with its index in it.

        A row is copied before the next one is read: the input may return the same memory again.

        Raises:
          InputEnded: too few rows are left.
        """

    def states(self) -> dict[str, Any] | None:
        """Returns the positions of the shards that this host reads, after the last batch.

        It is None where shards have no positions.
        """


class NumberedRows:
    """Rows of something with `__getitem__`: row r of batch k is number k * rows + r.

    Args:
      source: the object with `__getitem__`.
    """

    def __init__(self, source: Any, rows: int) -> None:
        if not hasattr(source, "__getitem__"):
            raise WrongInput(
                f"rows= needs an input with __getitem__, such as a grain.MapDataset, got {_kind(source)}"
            )
        self._source = source
        self._rows = rows
        self._count = len(source) if hasattr(source, "__len__") else None

    def of(self, batch: int, indices: Iterable[int]) -> Iterator[tuple[int, Any]]:
        """See `Rows.of`."""
        first = batch * self._rows
        if self._count is not None and first + self._rows > self._count:
            raise InputEnded
        for index in indices:
            try:
                row = self._source[first + index]
            except IndexError:
                if self._count is None:
                    raise InputEnded from None
                raise
            yield index, row

    def states(self) -> None:
        """Returns None: the number of the batch is the position."""
        return


class ShardedRows:
    """Rows of iterators, one for each shard; each yields an equal block of every batch.

    Args:
      make: creates the input of a shard, from `shard` and `shards`.
      rows: number of rows of a batch.
      shards_of_host: the shards that this host reads.
      states: the position from which each of all shards is read; None for the beginning.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        rows: int,
        shards: int,
        shards_of_host: Iterable[int],
        states: Sequence[Any] | None,
    ) -> None:
        self._rows = rows // shards
        self._iterators: dict[int, Any] = {}
        for shard in shards_of_host:
            source = make(shard=shard, shards=shards)
            if not hasattr(source, "__iter__") and not hasattr(source, "__next__"):
                raise WrongInput(f"shards= needs iterable inputs, got {_kind(source)}")
            iterator = iter(source)
            if states is not None:
                if not hasattr(iterator, "set_state"):
                    raise WrongInput(f"{_kind(iterator)} has no set_state(), so it cannot resume")
                iterator.set_state(_position(states[shard]))
            self._iterators[shard] = iterator

    def of(self, batch: int, indices: Iterable[int]) -> Iterator[tuple[int, Any]]:
        """See `Rows.of`."""
        requested = set(indices)
        has_ended = False
        for shard, iterator in self._iterators.items():
            for index in range(shard * self._rows, (shard + 1) * self._rows):
                try:
                    row = next(iterator)
                except StopIteration:
                    # Read the other shards nevertheless: an error of one of them is reported on every host.
                    has_ended = True
                    break
                if index in requested:
                    yield index, row
        if has_ended:
            raise InputEnded

    def states(self) -> dict[str, Any] | None:
        """See `Rows.states`."""
        if not all(hasattr(iterator, "get_state") for iterator in self._iterators.values()):
            return None
        return {str(shard): _as_json(iterator.get_state()) for shard, iterator in self._iterators.items()}


def _as_json(position: Any) -> Any:
    """Returns a position as JSON; the position of a Grain `DataLoader` is bytes."""
    return {_BYTES: base64.b64encode(position).decode()} if isinstance(position, bytes) else position


def _position(written: Any) -> Any:
    """Returns the position that `_as_json` converted."""
    is_bytes = isinstance(written, dict) and [*written] == [_BYTES] and isinstance(written[_BYTES], str)
    return base64.b64decode(written[_BYTES]) if is_bytes else written


@dataclasses.dataclass
class _OpenInput:
    """Input that batches are read from.

    Attributes:
      tree: JSON: the structure of a row, see `plain`.
      leaves: for each array of a batch on this host the index of its leaf in a row, and its first element in
        each dimension.
      row_shapes: the shape of each leaf of a row.
      memory: allocates the memory of shards.
    """

    rows: Rows
    tree: Any
    leaves: Sequence[tuple[int, Sequence[int]]]
    row_shapes: Sequence[Sequence[int]]
    memory: SpareMemory


class SpareMemory:
    """Pool of the memory of freed arrays: new pages cost more than filling them with rows."""

    def __init__(self) -> None:
        self._spare: dict[int, list[memoryview]] = {}

    def array(self, shape: Sequence[int], dtype: Any) -> np.ndarray[Any, Any]:
        """Returns an array that devices which read host memory need not copy."""
        size = math.prod(shape) * dtype.itemsize
        if not size:
            return np.empty(shape, dtype)
        spare = self._spare.setdefault(size, [])
        try:
            memory = spare.pop()
        except IndexError:
            memory = memoryview(memory_of(size))
        lease = _Lease(memory)
        weakref.finalize(lease, _give_back, spare, memory).atexit = False
        return np.frombuffer(lease, dtype).reshape(shape)


class _Lease:
    """Owner of a buffer, which the array and all its readers refer to; its finalizer runs after the last."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    def __buffer__(self, flags: int) -> memoryview:
        return self._memory


def _give_back(spare: list[memoryview], memory: memoryview) -> None:
    if len(spare) < _SPARE:
        spare.append(memory)


@of_package
def begin(
    *,
    source: str,
    function: str,
    named: Mapping[str, Any],
    rows: int,
    shards: int | None,
    shards_of_hosts: Mapping[str, Sequence[int]],
    states: Sequence[Any] | None,
    tree: Any,
    leaves: Sequence[tuple[int, Sequence[int]]],
    row_shapes: Sequence[Sequence[int]],
) -> dict[str, Any] | None:
    """Creates the input.

    Args:
      source: the name of the input in later calls.
      named: its keyword arguments.
      rows: number of rows of a batch.
      shards: number of shards; None for rows that have numbers.
      shards_of_hosts: the shards that each host reads.
      states: the positions of all shards; None for the beginning.
      tree: see `_OpenInput`.
      leaves: see `_OpenInput`.
      row_shapes: see `_OpenInput`.

    Returns:
      The positions of the shards that this host reads, see `Rows.states`.
    """
    context().about = ", opening the input"
    try:
        make = context().find(function)
        opened = open_rows(make, named, rows, shards, shards_of_hosts.get(str(context().host), ()), states)
    except WrongInput as error:
        raise CallRefused("result", str(error)) from None
    context().objects[source] = _OpenInput(opened, tree, leaves, row_shapes, SpareMemory())
    return opened.states()


@of_package
def end(*, source: str) -> None:
    """Closes an input."""
    context().objects.pop(source, None)


@of_package
def batch(*, source: str, number: int) -> list[Any]:
    """Returns the arrays of a batch, with the shards of this host."""
    call = context()
    call.about = f", batch {number}"
    opened: _OpenInput = call.objects[source]
    plan = [
        [(device, rows_of(index, result.shape)) for device, index in indices.items()]
        for result, sharding in zip(call.results, call.shardings, strict=True)
        for indices in [sharding.addressable_devices_indices_map(result.shape)]
    ]
    shards: list[dict[Any, np.ndarray[Any, Any]]] = [
        {
            bounds: opened.memory.array(shape_of(bounds), jax.numpy.dtype(result.dtype))
            for bounds in {bounds for _, bounds in devices_and_rows}
        }
        for devices_and_rows, result in zip(plan, call.results, strict=True)
    ]
    _fill(opened, number, shards)
    arrays = []
    for devices_and_rows, result, sharding, filled in zip(
        plan, call.results, call.shardings, shards, strict=True
    ):
        # Without x64 JAX would narrow 64-bit elements.
        with jax.enable_x64(True):
            placed = [pjrt.put_shard(filled[bounds], device, sharding) for device, bounds in devices_and_rows]
        # All shards may be on other hosts of the island.
        array = jax.make_array_from_single_device_arrays(result.shape, sharding, placed) if placed else None
        arrays.append(array)
    call.value = opened.rows.states()
    return arrays


def _fill(opened: _OpenInput, number: int, shards: Sequence[Mapping[Any, np.ndarray[Any, Any]]]) -> None:
    """Reads the rows of a batch, and copies each into the shards that have it.

    Args:
      opened: the input.
      shards: for each array its shards, by their first and last-plus-one element in each dimension.

    Raises:
      CallRefused: the input has ended, or has a row of another type.
    """
    targets = [
        (
            leaf,
            first[0] + bounds[0][0],
            tuple(
                slice(at + start, at + stop) for at, (start, stop) in zip(first[1:], bounds[1:], strict=True)
            ),
            shard,
        )
        for (leaf, first), of_array in zip(opened.leaves, shards, strict=True)
        for bounds, shard in of_array.items()
    ]
    indices = {row for _, start, _, shard in targets for row in range(start, start + len(shard))}
    try:
        for place, row in opened.rows.of(number, sorted(indices)):
            leaves = row_leaves(row, opened.tree, f"row {place}")
            for leaf, start, inside, shard in targets:
                if start <= place < start + len(shard):
                    array = checked(*leaves[leaf], shard.dtype, opened.row_shapes[leaf])
                    shard[place - start] = array[inside]
    except InputEnded:
        raise CallRefused("ended", "the input has ended") from None


def open_rows(
    make: Callable[..., Any],
    named: Mapping[str, Any],
    rows: int,
    shards: int | None,
    shards_of_host: Iterable[int],
    states: Sequence[Any] | None,
) -> Rows:
    """Returns the rows of an input, see `begin`."""
    if shards is None:
        return NumberedRows(make(**named), rows)
    return ShardedRows(lambda **shard: make(**named, **shard), rows, shards, shards_of_host, states)


def row_leaves(row: Any, tree: Any, name: str) -> dict[int, tuple[str, Any]]:
    """Returns the leaves of a row, each with its name in messages.

    Raises:
      CallRefused: the row has another structure.
    """
    try:
        return plain.matched(tree, row, name)
    except TypeError as error:
        raise CallRefused("result", str(error)) from None


def checked(name: str, value: Any, dtype: Any, shape: Sequence[int]) -> Any:
    """Returns a leaf of a row as an array.

    Raises:
      CallRefused: it has another dtype or shape.
    """
    try:
        array = np.asarray(value) if hasattr(value, "dtype") else numpy_of(value, dtype)
    except OverflowError:
        got = f"{value}"
    else:
        if array.shape == tuple(shape) and jax.dtypes.canonicalize_dtype(array.dtype) == dtype:
            return array
        got = f"{array.dtype}{list(array.shape)}"
    raise CallRefused("result", f"{name} is {got}: expected {dtype}{list(shape)}")


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"

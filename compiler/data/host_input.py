"""Batches of an input that a function of a module produces: on hosts, each for its devices, or here.

The rows of a batch depend on the numbers of rows or shards, and never on the number of hosts.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import functools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, override

import jax
import numpy as np

from pathways.compiler.backends.executable import ProgramExecutable
from pathways.compiler.backends.placed_type import PlacedType
from pathways.compiler.data.on_hosts import (
    FunctionOnHosts,
    call_of,
    find_here,
    lanes,
    output_array,
    values_of,
)
from pathways.compiler.frontend.jax_internals import unflatten
from pathways.runtime.control.records.errors import CallFailedError, HostError
from pathways.runtime.control.records.step import FunctionCall
from pathways.runtime.data import batches as worker_batches
from pathways.runtime.data.batches import InputEnded, Rows, checked, open_rows, row_leaves
from pathways.runtime.hosts.client.array import Array
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.cluster.host import HostGang, Location, WorkerHandle
from pathways.runtime.hosts.protocol import plain
from pathways.runtime.hosts.protocol.messages import DeviceLayout, ResultArray
from pathways.runtime.hosts.protocol.shards import shard_indices
from pathways.runtime.hosts.worker.call_runner import CallRefused
from pathways.runtime.local.proxied_load import check_not_proxied

_MODULE = worker_batches.__name__


class InputBatches(Iterator[Any]):
    """Batches of an input, in order.

    Args:
      source: the function.
      types: the leaves of a batch.
      tree: their structure.
      shards: the number of shards of the input; None for rows that have numbers.
      states: the positions at which it begins: the number of a batch, or of each shard; None for the
        beginning.

    Attributes:
      kind: the object that may lack a position, for messages.
    """

    def __init__(
        self,
        source: FunctionOnHosts,
        types: Sequence[Any],
        tree: Any,
        rows: int,
        shards: int | None,
        states: Any,
    ) -> None:
        self.kind = f"a shard of {source.name}"
        self._source = source
        self._types = types
        self._tree = tree
        self._rows = rows
        self._shards = shards
        leaves: list[Any] = []
        numbered = unflatten(tree, list(range(len(types))))
        self._structure = plain.tree_of(
            numbered, "pw.prefetch: the batch", lambda leaf: isinstance(leaf, int), leaves
        )
        # In JAX's order of leaves, which is also ours.
        self._order = leaves
        self._number = states if shards is None and states is not None else 0
        self._states = None if shards is None else states
        self._has_begun = False

    def get_state(self) -> Any:
        """Returns the position after the last batch: its number, or a list with the position of each shard.

        For shards it is known before the first batch once the input is open.

        Raises:
          TypeError: the input of a shard has no position.
        """
        if self._shards is None:
            return self._number
        return self._states

    def __next__(self) -> Any:
        self.open()
        leaves = self._make()
        self._number += 1
        return unflatten(self._tree, leaves)

    @property
    def number(self) -> int:
        """The number of the next batch, as hosts count them."""
        return self._number

    def open(self) -> None:
        """Opens the input, if it is not open yet."""
        if not self._has_begun:
            self._has_begun = True
            self._begin()

    def close(self) -> None:
        """Frees the input."""

    def described(self) -> str | None:
        """Returns a description of its current work, if hosts report it."""
        return None

    @abc.abstractmethod
    def _begin(self) -> None:
        """Creates the input."""

    @abc.abstractmethod
    def _make(self) -> list[Any]:
        """Returns the leaves of the next batch.

        Raises:
          StopIteration: the input has ended.
        """

    def _take_states(self, states: Mapping[str, Any] | None) -> None:
        """Stores the positions of shards."""
        if self._shards is None or states is None:
            self._states = None
            return
        self._states = [states[str(shard)] for shard in range(self._shards)]


class _BatchesHere(InputBatches):
    """Batches that are produced in this process."""

    _opened: Rows

    def _begin(self) -> None:
        source = self._source
        make = find_here(source.name)
        shards = range(self._shards or 0)
        with _as_error(source.name, "the input"):
            self._opened = open_rows(make, source.plain, self._rows, self._shards, shards, self._states)
            self._take_states(self._opened.states())

    def _make(self) -> list[Any]:
        batch = [np.empty(kind.shape, kind.dtype) for kind in self._types]
        try:
            with _as_error(self._source.name, f"batch {self._number}"):
                for place, row in self._opened.of(self._number, range(self._rows)):
                    leaves = row_leaves(row, self._structure, f"row {place}")
                    for n, number in enumerate(self._order):
                        array = batch[number]
                        array[place] = checked(*leaves[n], array.dtype, array.shape[1:])
        except InputEnded:
            raise StopIteration from None
        except CallRefused as error:
            raise TypeError(f"{self._source.name}, batch {self._number}: {error}") from None
        self._take_states(self._opened.states())
        return batch


@contextlib.contextmanager
def _as_error(name: str, item: str) -> Iterator[None]:
    """Raises an exception of the user's function as the error that hosts report."""
    try:
        yield
    except (InputEnded, CallRefused, TypeError):
        raise
    except Exception as error:
        raise CallFailedError(f"{name}, {item} raised {type(error).__name__}: {error}") from error


@dataclasses.dataclass(frozen=True)
class _RequestedBatch:
    """Requested batch of hosts: its leaves, and the calls that produce them."""

    arrays: list[Any]
    calls: list[FunctionCall]


class _BatchesOnHosts(InputBatches):
    """Batches that hosts produce; only numbers of arrays and the positions of shards come here.

    Args:
      is_ahead: whether hosts produce the next batch while one is waited for.
      types_now: returns the types of the leaves, with the places where the step reads them now.
      *of_all: see `InputBatches`.
    """

    def __init__(
        self,
        controller: HostSession,
        is_ahead: bool,
        types_now: Callable[[], Sequence[PlacedType]],
        *of_all: Any,
    ) -> None:
        super().__init__(*of_all)
        self._is_ahead = is_ahead
        self._controller = controller
        self._types_now = types_now
        self._place()

    def _place(self) -> None:
        """Determines which hosts produce which rows, from where the step reads them."""
        controller = self._controller
        self._requested: collections.deque[_RequestedBatch] = collections.deque()
        self._name = f"input-{secrets.token_hex(8)}"
        self._lane = next(lanes)
        self._calls: list[FunctionCall] = []
        # For each island the leaves that it produces, and their locations.
        self._places: dict[HostGang, list[tuple[int, Location]]] = {}
        for number, kind in enumerate(self._types):
            for location in kind.locations:
                # The workers may have been replaced since the step was compiled, which its next call notices.
                gang = controller.pool.gangs[location.gang.number]
                current = gang.location(location.placement, location.block)
                self._places.setdefault(gang, []).append((number, current))
        self._outputs = {gang: self._arrays_of(places) for gang, places in self._places.items()}
        self._hosts = {
            gang: [host for host in gang.hosts if any(host in location.holders for _, location in places)]
            for gang, places in self._places.items()
        }
        self._shards_by_host = {
            host: self._shards_of(host, places)
            for gang, places in self._places.items()
            for host in self._hosts[gang]
        }

    def _arrays_of(self, places: Sequence[tuple[int, Location]]) -> tuple[ResultArray, ...]:
        return tuple(
            output_array(
                jax.ShapeDtypeStruct(
                    location.block.shape(self._types[number].shape), self._types[number].dtype
                ),
                location.placement,
            )
            for number, location in places
        )

    def _shards_of(self, host: WorkerHandle, places: Sequence[tuple[int, Location]]) -> list[int]:
        """Returns the shards of the input that a host reads.

        Raises:
          ValueError: it reads only some rows of one.
        """
        if self._shards is None:
            return []
        rows: set[int] = set()
        for number, location in places:
            shape, first = location.block_of(self._types[number].shape)
            indices = shard_indices(shape, location.placement)
            for position in location.holders.get(host, ()):
                bounds = indices[position][0]
                rows |= set(range(first[0] + bounds.start, first[0] + bounds.stop))
        each = self._rows // self._shards
        shards = sorted({row // each for row in rows})
        if len(rows) != len(shards) * each:
            raise ValueError(
                f"pw.prefetch: {host} reads {len(rows)} of {self._rows} rows, which are not whole shards: "
                f"shards={self._shards} have {each} rows each"
            )
        return shards

    def _begin(self) -> None:
        source = self._source
        for gang, places in self._places.items():
            named = {
                "source": self._name,
                "function": source.name,
                "named": source.plain,
                "rows": self._rows,
                "shards": self._shards,
                "shards_of_hosts": {
                    str(host.index): self._shards_by_host[host] for host in self._hosts[gang]
                },
                "states": self._states,
                "tree": self._structure,
                "leaves": [
                    (self._order.index(number), location.block_of(self._types[number].shape)[1])
                    for number, location in places
                ],
                "row_shapes": [list(self._types[number].shape[1:]) for number in self._order],
            }
            # A new list, because `described` iterates over it in the thread of the caller.
            self._calls = [*self._calls, self._call(gang, "begin", self._encoded(named))]
        self._take_states(self._positions_of(self._calls))

    def _make(self) -> list[Any]:
        while True:
            try:
                return self._produce()
            except HostError:
                types = self._types_now()
                if _places_of(types) == _places_of(self._types):
                    raise
                # The step has moved to another island: the batches after the last one are produced there.
                self._types = types
                self._place()
                self._begin()

    def _produce(self) -> list[Any]:
        batch = self._requested.popleft() if self._requested else self._request(self._number)
        if self._is_ahead:
            # Before the wait for the current batch, so that hosts produce this one meanwhile.
            self._requested.append(self._request(self._number + 1))
        self._calls = batch.calls
        self._take_states(self._positions_of(batch.calls))
        return batch.arrays

    def _positions_of(self, calls: Sequence[FunctionCall]) -> dict[str, Any] | None:
        """Returns the positions of shards that hosts report, when all calls have finished.

        Raises:
          StopIteration: the input has ended.
        """
        states: dict[str, Any] | None = {}
        # All calls are waited for: an error on one island outranks the end of the input on another.
        failures: list[Exception] = []
        for call in calls:
            try:
                for reported in values_of(self._controller, call):
                    states = None if reported is None or states is None else states | reported
            except Exception as error:
                failures.append(error)
        for failure in failures:
            if not isinstance(failure, InputEnded):
                raise failure
        if failures:
            raise StopIteration
        return states

    def _request(self, number: int) -> _RequestedBatch:
        """Requests a batch from hosts."""
        arrays = [
            Array(self._controller, jax.core.ShapedArray(kind.shape, kind.dtype)) for kind in self._types
        ]
        calls = []
        arguments = self._encoded({"source": self._name, "number": number})
        for gang, places in self._places.items():
            call = self._call(gang, "batch", arguments, self._outputs[gang])
            for n, (leaf, location) in enumerate(places):
                arrays[leaf].add_copy(location, call.number + 1 + n, call)
            calls.append(call)
        return _RequestedBatch(arrays, calls)

    @override
    def close(self) -> None:
        for gang in self._places:
            with contextlib.suppress(HostError):
                self._call(gang, "end", self._encoded({"source": self._name}))

    @override
    def described(self) -> str | None:
        waiting = [call for call in self._calls if not call.is_done()]
        return "\n".join(self._controller.describe_call(call) for call in waiting) or None

    def _encoded(self, named: Mapping[str, Any]) -> bytes:
        """Returns the encoded named arguments of a call."""
        return plain.encode([[], {"t": []}, named], f"{self._source.name}: the input")

    def _call(
        self, gang: HostGang, function: str, arguments: bytes, outputs: tuple[ResultArray, ...] | None = None
    ) -> FunctionCall:
        edition, structure = self._source.edition, _list_of(len(outputs or ()))
        message = call_of(f"{_MODULE}:{function}", edition, self._lane, [], arguments, outputs, structure)
        return self._controller.call(self._source.name, gang, self._hosts[gang], message)


def _places_of(types: Sequence[PlacedType]) -> list[list[tuple[int, DeviceLayout]]]:
    """Returns the island and the layout of each copy of arrays, whichever workers have them."""
    return [[(location.gang.number, location.placement) for location in kind.locations] for kind in types]


@functools.cache
def _list_of(count: int) -> bytes:
    """Returns a list of arrays as a tree of `plain`."""
    return plain.encode({"l": [*range(count)]}, "the batch")


def batches_of(
    source: FunctionOnHosts,
    executable: ProgramExecutable,
    argument: str,
    rows: int | None,
    shards: int | None,
    *,
    is_ahead: bool,
) -> InputBatches:
    """Returns the batches of an input for `pw.prefetch`; hosts may compute one more than is read.

    Raises:
      ValueError: see `pw.prefetch`.
      TypeError: the argument is not a tree of arrays with rows.
    """
    if source.devices is not None:
        raise ValueError(
            f"pw.prefetch: {source.name} has devices=, but an input runs where the step reads it"
        )
    for option, number in (("rows", rows), ("shards", shards)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int | np.integer)):
            raise TypeError(f"pw.prefetch: {option} must be a whole number, got {number!r}")
    if (rows is None) == (shards is None):
        raise ValueError(f"pw.prefetch: {source.name} is an input of pw.on_hosts: expected rows= or shards=")
    numbers, tree = executable.argument(argument)
    types = executable.argument_types(numbers)
    names = [executable.paths[n] for n in numbers]
    for kind, name in zip(types, names, strict=True):
        if not kind.shape or jax.dtypes.issubdtype(kind.dtype, jax.dtypes.extended):
            raise TypeError(
                f"pw.prefetch: {name} is {kind.dtype}{list(kind.shape)}, which is not rows of numbers"
            )
    count = types[0].shape[0]
    for kind, name in zip(types, names, strict=True):
        if kind.shape[0] != (count if rows is None else rows):
            expected = f"rows={rows}" if rows is not None else f"{count} rows of {names[0]}"
            raise ValueError(f"pw.prefetch: {expected}, but {name} has {kind.shape[0]} rows")
    if shards is not None and (shards < 1 or count % shards):
        raise ValueError(f"pw.prefetch: shards={shards} do not divide the {count} rows of a batch")
    states = source.get_state()
    _check_states(source.name, states, shards)
    of_all = (source, types, tree, count, None if shards is None else int(shards), states)
    placed = [kind for kind in types if isinstance(kind, PlacedType)]
    if not placed:
        check_not_proxied(f"pw.prefetch: {source.name} runs")
        return _BatchesHere(*of_all)
    return _BatchesOnHosts(
        placed[0].controller, is_ahead, functools.partial(executable.argument_types, numbers), *of_all
    )


def _check_states(name: str, states: Any, shards: int | None) -> None:
    if states is None:
        return
    if shards is None:
        if not isinstance(states, int) or isinstance(states, bool) or states < 0:
            position = (
                f"a position of shards={len(states)}" if isinstance(states, list) else f"position {states!r}"
            )
            raise ValueError(
                f"pw.prefetch: {name} starts at {position}, but rows= takes the number of a batch"
            )
        return
    if not isinstance(states, list):
        raise ValueError(
            f"pw.prefetch: {name} begins at position {states!r}, which does not belong to shards={shards}"
        )
    if len(states) != shards:
        raise ValueError(
            f"pw.prefetch: {name} starts at a position of shards={len(states)}, but shards={shards}"
        )

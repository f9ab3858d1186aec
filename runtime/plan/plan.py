"""The plan: a scheduled program flattened to numbered slots, independent of devices and of JAX.

A slot holds one logical array on one slice. A mirrored value has one slot per slice. `runtime.plan.lower`
reads plans from the scheduled form of the IR; `runtime.local` binds them to devices, and generates the
functions that run them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import ml_dtypes  # noqa: F401 (teaches numpy the names of small floats)
import msgspec
import numpy as np

from pathways.dialect.attributes.blocks import block_shape
from pathways.dialect.attributes.call_times import CallTimes
from pathways.dialect.attributes.origins import Origin
from pathways.dialect.plain_data import Count, Symbol, Text

Slot = int


@dataclasses.dataclass(frozen=True)
class ArrayType:
    """Type of a logical array: its global shape and the name of its numpy (or ml_dtypes) dtype."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class SliceSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Virtual slice: the mesh that it needs, named axes in major-to-minor order.

    Slices with `overlap` may share devices; their work is then in one queue.
    """

    name: Symbol
    axis_names: tuple[Text, ...]
    shape: tuple[Count, ...]
    island: Text | None = None
    overlap: bool = False

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class Computation:
    """Computation: one XLA module.

    Attributes:
      name: the name of the callee in the program.
      module: MLIR bytecode or a portable artifact of StableHLO with one public function `main`, donation as
        argument attributes.
      operands: types of the arguments of `main`.
      donated: numbers of the arguments that it consumes.
      callbacks: whether it calls back into Python.
      effects: whether it does more than compute its results, such as print.
      local: whether each device runs the module by itself, on its own shards; operands and results are then
        the types of shards.
    """

    name: str
    module: bytes
    operands: tuple[ArrayType, ...]
    results: tuple[ArrayType, ...]
    donated: tuple[int, ...] = ()
    callbacks: bool = False
    effects: bool = False
    local: bool = False


@dataclasses.dataclass(frozen=True)
class Launch:
    """Execution of a computation on all devices of a slice.

    Attributes:
      operands: the slots that it reads.
      results: the slots that it fills.
      label: its name in traces and errors.
      origins: the placed calls that it represents; none for glue.
      microbatch: the microbatch that it works on, None outside loops.
      loop: the loop that it belongs to, None outside loops.
    """

    computation: str
    slice: str
    operands: tuple[Slot, ...]
    results: tuple[Slot, ...]
    label: str
    origins: tuple[Origin, ...] = ()
    microbatch: int | None = None
    loop: str | None = None


@dataclasses.dataclass(frozen=True)
class Transfer:
    """Copy of arrays on slice `src` to new slots on slice `dst`.

    Without routes there is one operand and one result, and each device receives the shard of the device with
    the same number.

    Attributes:
      operands: the slots of the arrays to copy.
      results: the slots that it fills.
      src: the slice of the operands.
      dst: the slice of the results.
      routes: for each result, and for each device of `dst`, the position of an operand and the number of
        the device of `src` whose shard of it is copied; None for a copy shard by shard.
    """

    operands: tuple[Slot, ...]
    results: tuple[Slot, ...]
    src: str
    dst: str
    routes: tuple[tuple[tuple[int, int], ...], ...] | None = None
    channel: str | None = None


@dataclasses.dataclass(frozen=True)
class Release:
    """End of slots. Those in `delete` hold arrays that the caller donated: their buffers are freed."""

    slots: tuple[Slot, ...]
    delete: tuple[Slot, ...] = ()


@dataclasses.dataclass(frozen=True)
class Send:
    """Offer of arrays on slice `src` to the host that `dst` is on. It does not wait.

    The arrays may not be computed yet, and the other host may have requested them already. They live at least
    until the end of the program's step: no message says when the other host has received them.

    Attributes:
      operands: the slots of the arrays.
      src: the slice of the operands, on this host.
      dst: the slice of the results, on the host `peer`.
      peer: the number of the host that receives.
      index: the number of the transfer among all transfers between hosts of a step; the sender and the
        receiver use the same one, and no other transfer does.
      routes: as in a `Transfer`; None where device k of `src` sends its shard to device k of `dst`.
      copy: whether a copy of the arrays must be sent, because they may be donated or deleted before the other
        host has received them.
    """

    operands: tuple[Slot, ...]
    src: str
    dst: str
    channel: str
    peer: int
    index: int
    routes: tuple[tuple[tuple[int, int], ...], ...] | None = None
    copy: bool = False

    @property
    def results(self) -> tuple[Slot, ...]:
        """No slots: a send fills none."""
        return ()


@dataclasses.dataclass(frozen=True)
class Receive:
    """Request for arrays of another host, which fill slots on slice `dst`. It does not wait.

    The slots hold arrays at once, which are ready when the other host has sent them. Their memory counts from
    the beginning of the program's step, since the thread that issues steps may be far ahead of the devices.

    Attributes:
      results: the slots that it fills.
      src: the slice of the operands, on the host `peer`.
      dst: the slice of the results, on this host.
      peer: the number of the host that sends.
      index: the number of the transfer among all transfers between hosts of a step; the sender and the
        receiver use the same one, and no other transfer does.
      routes: as in a `Transfer`, with the operands of the `Send`; None where device k of `dst` receives the
        shard of device k of `src`.
    """

    results: tuple[Slot, ...]
    src: str
    dst: str
    channel: str
    peer: int
    index: int
    routes: tuple[tuple[tuple[int, int], ...], ...] | None = None

    @property
    def operands(self) -> tuple[Slot, ...]:
        """No slots: a receive reads none."""
        return ()


Step = Launch | Transfer | Send | Receive | Release


@dataclasses.dataclass(frozen=True)
class Replicas:
    """Distribution of an argument or result over the replicas of the program.

    Attributes:
      slices: for each replica, the slices that hold the array; in a host program, those on that host.
      count: the number of all replicas.
      split: the dimension that is split in a block for each replica; None if each has the whole array.
    """

    slices: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...]
    count: int
    split: int | None = None

    def block(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the block that one replica has of an array."""
        return block_shape(shape, self.split, self.count)


@dataclasses.dataclass(frozen=True)
class Argument:
    """Argument of the program.

    Attributes:
      slots: the slot that holds it, by slice; several slices for a mirrored argument, none for one that
        nothing reads.
      donated: whether the program consumes it.
      constant: the name of the program constant that it holds, None for an argument that the caller passes.
      replicas: its distribution over replicas; None in a program without replicas.
      memory_kind: its memory kind; None for the default memory of devices.
      replaced_by: the number of the result that callers pass for it in the next call, where that is not on
        all of its slices; None of all others.
    """

    type: ArrayType
    slots: Mapping[str, Slot]
    donated: bool = False
    constant: str | None = None
    replicas: Replicas | None = None
    memory_kind: str | None = None
    replaced_by: int | None = None


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of the program.

    Attributes:
      slots: the slot that holds it, by slice; several slices for a mirrored result.
      replicas: its distribution over replicas; None in a program without replicas.
      memory_kind: its memory kind; None for the default memory of devices.
    """

    type: ArrayType
    slots: Mapping[str, Slot]
    replicas: Replicas | None = None
    memory_kind: str | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """Plan of a scheduled program, or of one host's share of it.

    Attributes:
      slices: the slices that it needs, by name.
      computations: its XLA modules, by name.
      arguments: all arguments: the arguments that the caller passes, with constants anywhere among them.
      steps: launches, transfers and releases in an order that was proved free of deadlock; a host program has
        sends and receives, too.
      slot_types: the type of the array in each slot.
      slot_shardings: for each slot and dimension the mesh axes that split it; a slot with an empty tuple is
        replicated in all dimensions.
      slot_kinds: the memory kind of the array in each slot, None for the default memory of devices; empty if
        all are in that.
      constants: the bytes-like arrays (numpy) of program constants, by name.
      peak_bytes: the maximum of bytes that are live on each slice, without temporaries inside computations.
      channels: the number of values that each channel has room for, by the name of the channel.
      times: the durations of its placed calls that it was scheduled with.
      host: the number of the host of a host program; None for a whole program.
      argument_numbers: of a host program, for each argument its number among the arguments that the caller of
        the whole program passes; constants have the numbers after these.
      result_numbers: of a host program, for each result its number among the results of the whole program.
    """

    name: str
    slices: Mapping[str, SliceSpec]
    computations: Mapping[str, Computation]
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    steps: tuple[Step, ...]
    slot_types: tuple[ArrayType, ...]
    slot_shardings: tuple[tuple[tuple[str, ...], ...], ...] = ()
    slot_kinds: tuple[str | None, ...] = ()
    constants: Mapping[str, object] = dataclasses.field(default_factory=dict)
    peak_bytes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    channels: Mapping[str, int] = dataclasses.field(default_factory=dict)
    times: CallTimes = dataclasses.field(default_factory=CallTimes)
    host: int | None = None
    argument_numbers: tuple[int, ...] = ()
    result_numbers: tuple[int, ...] = ()

    def sharding(self, slot: Slot) -> tuple[tuple[str, ...], ...]:
        """Returns the mesh axes that split each dimension of the array in a slot."""
        written = self.slot_shardings[slot] if self.slot_shardings else ()
        return written or ((),) * len(self.slot_types[slot].shape)

    def memory_kind(self, slot: Slot) -> str | None:
        """Returns the memory kind of the array in a slot; None for the default memory of devices."""
        return self.slot_kinds[slot] if self.slot_kinds else None

    @functools.cached_property
    def slot_slices(self) -> Mapping[Slot, str]:
        """The slice of each slot."""
        values: list[Argument | Result] = [*self.arguments, *self.results]
        slices = {slot: name for value in values for name, slot in value.slots.items()}
        for step in self.steps:
            match step:
                case Launch():
                    slices.update(dict.fromkeys(step.results, step.slice))
                case Transfer() | Receive():
                    slices.update(dict.fromkeys(step.results, step.dst))
                case Send() | Release():
                    pass
        return slices

    def shard_type(self, slot: Slot) -> ArrayType:
        """Returns the type of the shard, of the array in a slot, that each device of its slice holds."""
        spec, type_ = self.slices[self.slot_slices[slot]], self.slot_types[slot]
        sizes = dict(zip(spec.axis_names, spec.shape, strict=True))
        counts = [math.prod(sizes[axis] for axis in axes) for axes in self.sharding(slot)]
        shape = tuple(size // n for size, n in zip(type_.shape, counts, strict=True))
        return ArrayType(shape, type_.dtype)

    @functools.cached_property
    def uncopied_slots(self) -> Mapping[Slot, int]:
        """The slots that become results without a copy, each with the first of its results.

        The caller gets a copy of any other slot. It may donate each array that it gets, so that no other
        array may share the buffer: no constant, no argument that it did not donate, and no other result.
        """
        undonated = {slot for a in self.arguments if not a.donated for slot in a.slots.values()}
        uncopied: dict[Slot, int] = {}
        for number, result in enumerate(self.results):
            for slot in set(result.slots.values()) - undonated:
                uncopied.setdefault(slot, number)
        return uncopied

    def donated_operands(self, launch: Launch) -> tuple[Slot, ...]:
        """Returns the slots whose arrays a launch consumes."""
        return tuple(launch.operands[number] for number in self.computations[launch.computation].donated)

    def bytes_moved(self, transfer: Transfer | Receive) -> int:
        """Returns the bytes that a transfer moves: the bytes of all shards that it fills."""
        return sum(map(self._bytes_in, transfer.results))

    def argument_bytes_moved(self) -> int:
        """Returns the bytes that a call moves first if it is passed the results of the last one."""
        return sum(
            self._bytes_in(slot)
            for argument in self.arguments
            if argument.replaced_by is not None
            for name, slot in argument.slots.items()
            if name not in self.results[argument.replaced_by].slots
        )

    def _bytes_in(self, slot: Slot) -> int:
        return self.slices[self.slot_slices[slot]].size * self.shard_type(slot).nbytes

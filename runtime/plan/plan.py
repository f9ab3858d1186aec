"""The plan: a scheduled program flattened to numbered slots, independent of devices and of JAX.

A slot holds one logical array on one slice. A mirrored value has one slot per slice. Making a plan reads
the scheduled form of the IR; `runtime.local` binds it to devices and generates the function that
runs it.
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
    """The type of a logical array: its global shape and the name of its numpy (or ml_dtypes) dtype."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class SliceSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A virtual slice: the mesh that it needs, named axes in major-to-minor order.

    Slices with `overlap` may share devices, so that their work is in one queue.
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
    """One XLA module.

    Attributes:
      name: the name of the callee in the program.
      module: MLIR bytecode or a portable artifact of StableHLO with one public function `main`, donation as
        argument attributes.
      operands: types of the arguments of `main`.
      results: types of its results.
      donated: numbers of the arguments that it consumes.
      callbacks: whether it calls back into Python.
      effects: whether it does more than compute its results, such as print.
      local: whether the module is what each device does with its own shards, for which it needs no other
        device; operands and results are then the types of shards.
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
    """Runs a computation on all devices of a slice.

    Attributes:
      computation: the name of the computation.
      slice: the slice.
      operands: the slots that it reads.
      results: the slots that it fills.
      label: names it in traces and errors.
      origins: the placed calls that it stands for; none for glue.
      microbatch: the microbatch that it works on, None outside loops.
      loop: the loop that it is part of, None outside loops.
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
    """Copies arrays on slice `src` to new slots on slice `dst`.

    Without routes there is one operand and one result, and each device gets the shard of the device with
    the same number.

    Attributes:
      operands: the slots of the arrays to copy from.
      results: the slots they go to.
      src: the slice of the operands.
      dst: the slice of the results.
      routes: for each result, and for each device of `dst`, the position of an operand and the number of
        the device of `src` whose shard of it is copied; None for a copy shard by shard.
      channel: the channel that it takes.
    """

    operands: tuple[Slot, ...]
    results: tuple[Slot, ...]
    src: str
    dst: str
    routes: tuple[tuple[tuple[int, int], ...], ...] | None = None
    channel: str | None = None


@dataclasses.dataclass(frozen=True)
class Release:
    """Forgets slots. A slot in `delete` belongs to the caller, who donated it: its buffer is freed."""

    slots: tuple[Slot, ...]
    delete: tuple[Slot, ...] = ()


@dataclasses.dataclass(frozen=True)
class Send:
    """Gives arrays on slice `src` to the host that `dst` is on. It does not wait.

    The arrays may still be computed, and the other host may have asked for them already. What is sent lives
    at least until the end of the step: nothing tells when the other host has it.

    Attributes:
      operands: the slots of the arrays.
      src: the slice of the operands, on this host.
      dst: the slice that they go to, on the host `peer`.
      channel: the channel.
      peer: the number of the host that receives.
      index: the number of the transfer among those of a step between hosts; both ends have it, and no other
        transfer.
      routes: as those of a `Transfer`; None where device k of `src` gives its shard to device k of `dst`.
      copy: whether what is sent must be a copy of the arrays, because they may be donated or deleted before
        the other host has them.
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
        """It fills no slots."""
        return ()


@dataclasses.dataclass(frozen=True)
class Receive:
    """Asks for arrays of another host, which fill slots on slice `dst`. It does not wait.

    The slots hold arrays at once that are filled when the other host has sent them: their memory counts from
    the beginning of the step, since what issues the steps may be far ahead of what runs them.

    Attributes:
      results: the slots.
      src: the slice that the arrays come from, on the host `peer`.
      dst: the slice of the results, on this host.
      channel: the channel.
      peer: the number of the host that sends.
      index: the number of the transfer among those of a step between hosts; both ends have it, and no other
        transfer.
      routes: as those of a `Transfer`, with the operands of the `Send`; None where device k of `dst` gets the
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
        """It reads no slots."""
        return ()


Step = Launch | Transfer | Send | Receive | Release


@dataclasses.dataclass(frozen=True)
class Replicas:
    """How an argument or result is shared out among replicas of the program.

    Attributes:
      slices: for each replica, the slices that it has it on; of what one host does, those on that host.
      numbers: the number of each of these replicas.
      count: how many replicas there are.
      split: the dimension of which each has its block; None where each has all of it.
    """

    slices: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...]
    count: int
    split: int | None = None

    def part(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of what one replica has of an array."""
        return block_shape(shape, self.split, self.count)


@dataclasses.dataclass(frozen=True)
class Argument:
    """An argument of the program.

    Attributes:
      type: its type.
      slots: the slot that receives it, by slice; several slices for a mirrored argument, none for one
        that nothing reads.
      donated: whether the program consumes it.
      constant: the name of the program constant it is, None for one that the caller passes.
      replicas: how replicas share it; None where there are none.
    """

    type: ArrayType
    slots: Mapping[str, Slot]
    donated: bool = False
    constant: str | None = None
    replicas: Replicas | None = None


@dataclasses.dataclass(frozen=True)
class Result:
    """A result of the program.

    Attributes:
      type: its type.
      slots: the slot that holds it, by slice; several slices for a mirrored result.
      replicas: how replicas share it; None where there are none.
    """

    type: ArrayType
    slots: Mapping[str, Slot]
    replicas: Replicas | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """A scheduled program, or what one host does of it.

    Attributes:
      name: the name of the program.
      slices: the slices it needs, by name.
      computations: its XLA modules, by name.
      arguments: all arguments: those that the caller passes, with constants anywhere among them.
      results: its results.
      steps: launches, transfers and releases in an order that was proved free of deadlock; what one host does
        of a program has sends and receives, too.
      slot_types: the type of the array in each slot.
      slot_shardings: for each slot and dimension the mesh axes that split it; an empty tuple for a slot
        is replicated in all dimensions.
      constants: the bytes-like arrays (numpy) of program constants, by name.
      peak_bytes: the most bytes alive at once on each slice, without temporaries inside computations.
      channels: how many values each channel has room for, by its name.
      times: how long its placed calls take by what it was scheduled with.
      host: the host whose work it is; None for a whole program.
      argument_numbers: of what one host does, for each argument its number among those that the caller of the
        program passes; constants have the numbers after these.
      result_numbers: of what one host does, for each result its number among those of the program.
    """

    name: str
    slices: Mapping[str, SliceSpec]
    computations: Mapping[str, Computation]
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    steps: tuple[Step, ...]
    slot_types: tuple[ArrayType, ...]
    slot_shardings: tuple[tuple[tuple[str, ...], ...], ...] = ()
    constants: Mapping[str, object] = dataclasses.field(default_factory=dict)
    peak_bytes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    channels: Mapping[str, int] = dataclasses.field(default_factory=dict)
    times: CallTimes = dataclasses.field(default_factory=CallTimes)
    host: int | None = None
    argument_numbers: tuple[int, ...] = ()
    result_numbers: tuple[int, ...] = ()

    def sharding(self, slot: Slot) -> tuple[tuple[str, ...], ...]:
        """The mesh axes that split each dimension of the array in a slot."""
        written = self.slot_shardings[slot] if self.slot_shardings else ()
        return written or ((),) * len(self.slot_types[slot].shape)

    @functools.cached_property
    def slot_slices(self) -> Mapping[Slot, str]:
        """The slice of each slot."""
        slices = {slot: name for argument in self.arguments for name, slot in argument.slots.items()}
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
        """The type of the part of the array in a slot that each device of its slice holds."""
        spec, type_ = self.slices[self.slot_slices[slot]], self.slot_types[slot]
        sizes = dict(zip(spec.axis_names, spec.shape, strict=True))
        parts = [math.prod(sizes[axis] for axis in axes) for axes in self.sharding(slot)]
        shape = tuple(size // n for size, n in zip(type_.shape, parts, strict=True))
        return ArrayType(shape, type_.dtype)

    @functools.cached_property
    def own_slots(self) -> Mapping[Slot, int]:
        """The slots that become results as they are, each with the first of its results.

        Of any other slot the caller gets a copy. It may donate each array that it gets, and no other array
        may die with it: no constant, no argument that it kept, and no other result.
        """
        kept = {slot for a in self.arguments if not a.donated for slot in a.slots.values()}
        own: dict[Slot, int] = {}
        for number, result in enumerate(self.results):
            for slot in set(result.slots.values()) - kept:
                own.setdefault(slot, number)
        return own

    def donated_operands(self, launch: Launch) -> tuple[Slot, ...]:
        """The slots whose arrays a launch consumes."""
        return tuple(launch.operands[number] for number in self.computations[launch.computation].donated)

    def bytes_moved(self, transfer: Transfer | Receive) -> int:
        """The bytes that are brought over: those of all shards that are filled."""
        shards = (self.shard_type(slot) for slot in transfer.results)
        return self.slices[transfer.dst].size * sum(shard.nbytes for shard in shards)

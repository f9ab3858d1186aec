"""Views of arrays that hosts need as arrays: shards of some, joined without a copy, or copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import msgspec
import numpy as np
from jax.experimental.layout import Layout

from pathways.runtime.hosts.protocol.messages import DeviceLayout, LoadForeign, StepMemory
from pathways.runtime.hosts.worker.array_store import sharding_of
from pathways.runtime.hosts.worker.program_description import shard_bytes
from pathways.runtime.hosts.worker.worker import Worker, WorkerProgram
from pathways.runtime.proxy.arrays.layouts import put_in_layout
from pathways.runtime.proxy.worker.foreign import (
    ForeignExecutable,
    ForeignOutput,
    ForeignTarget,
    UnprovedArrays,
    foreign_program,
    own_devices,
    program_elsewhere,
    zeros_on,
)
from pathways.runtime.xla import ifrt, pjrt


class ShardSource(msgspec.Struct, frozen=True):
    """Shard of an operand: the number of the operand, and the id of the device of the shard."""

    operand: int
    device: int


class MemoryOrder(msgspec.Struct, frozen=True):
    """Layout of shards in memory, as `jax.experimental.layout.Layout`; the default without dimensions."""

    major_to_minor: tuple[int, ...] = ()
    tiling: tuple[tuple[int, ...], ...] = ()


class ViewProgram(msgspec.Struct, frozen=True):
    """Array of shards of others.

    Attributes:
      layout: its layout.
      sources: the source of its shard on each device, in the order of the layout.
      copied: whether the shards are copied; else each is on the device of its source.
      order: their layout in memory, if it differs from the layout of the sources; None for the same.
    """

    shape: tuple[int, ...]
    dtype: str
    layout: DeviceLayout
    sources: tuple[ShardSource, ...]
    copied: bool
    order: MemoryOrder | None


def load_view(worker: Worker, unproved: UnprovedArrays, message: LoadForeign) -> tuple[WorkerProgram, bytes]:
    """Loads a view, see `Worker.loaders`."""
    view = msgspec.msgpack.decode(message.body, type=ViewProgram)
    handles = own_devices(worker)
    here = [
        (handles[device], source)
        for device, source in zip(view.layout.devices, view.sources, strict=True)
        if device in handles
    ]
    operands = 1 + max(source.operand for source in view.sources)
    if not here:
        return program_elsewhere(message.name, operands=operands, count=1), b""
    # Operands without a shard here may be missing here.
    inputs = tuple(sorted({source.operand for _, source in here}))
    by_id = {device.id: device for device in jax.devices()}
    sharding = sharding_of(view.layout, by_id)
    make = ifrt.array_maker(view.shape, np.dtype(view.dtype), sharding)
    picks = [(device, inputs.index(source.operand), handles[source.device]) for device, source in here]
    kind = view.layout.memory_kind
    places = [jax.sharding.SingleDeviceSharding(device, memory_kind=kind) for device, *_ in picks]
    memory = None
    if view.order is not None and view.order.major_to_minor:
        memory = Layout(view.order.major_to_minor, view.order.tiling)

    # A failed shard is an error of all: each host joins its shards, and one of them reports the error.
    is_shared = len(here) < len(view.layout.devices)
    target = ForeignTarget()
    shard_shape = sharding.shard_shape(view.shape)

    def run(arguments: Sequence[Any]) -> list[Any]:
        errors = [unproved.error_of(argument) if is_shared else None for argument in arguments]
        target.missed = next(filter(None, errors), None)
        shards = [
            {shard.device: shard.data for shard in array.addressable_shards} if error is None else {}
            for array, error in zip(arguments, errors, strict=True)
        ]
        chosen = [
            shards[operand][source]
            if errors[operand] is None
            else zeros_on(source, shard_shape, view.dtype, kind)
            for _, operand, source in picks
        ]
        if view.order is not None:
            chosen = [put_in_layout(*pair, memory) for pair in zip(chosen, places, strict=True)]
        elif view.copied:
            lists = [pjrt.device_list([device]) for device, *_ in picks]
            chosen = pjrt.copy_arrays(chosen, lists, places, [pjrt.ALWAYS_COPY] * len(chosen))
        joined = make(chosen)
        if not is_shared and any(map(unproved.has, arguments)):
            unproved.add([joined])
        return [joined]

    executable = ForeignExecutable(run, [ForeignOutput(f"of device {view.layout.devices[0]}")])
    count = shard_bytes(view.shape, np.dtype(view.dtype).itemsize, sharding)
    is_copied = view.copied or view.order is not None
    loaded = foreign_program(
        message.name,
        executable,
        target,
        operands=operands,
        inputs=inputs,
        runs_with_failed=is_shared,
        memory=StepMemory(
            (tuple(device.id for device, *_ in picks),),
            (count if is_copied else 0,),
            (0,),
            ((0, 0, count),),
            is_view=not is_copied,
        ),
    )
    return loaded, b""

"""Memory, FLOPs and text of XLA's modules of a program on this host, for the controller."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from pathways.runtime.hosts.protocol.messages import Described, StepMemory
from pathways.runtime.local.load import Executable, device_text, stats_of
from pathways.runtime.local.memory import analyze
from pathways.runtime.xla.pjrt import flops_of

_CHARACTERS = 1 << 20
"""Maximum length of the text in one message."""


def memory_of(executable: Executable, positions: Sequence[int]) -> StepMemory:
    """Returns the memory that a step of a program needs on the devices of this host.

    Args:
      positions: the position of each of its results among the results of its island.
    """
    analysis = analyze(executable.plan, stats_of(executable.executables))
    devices = dict.fromkeys(analysis, ())
    results = []
    numbers = {name: number for number, name in enumerate(analysis)}
    for position, port in zip(positions, executable.outputs, strict=True):
        count = shard_bytes(port.type.shape, jax.numpy.dtype(port.type.dtype).itemsize, port.sharding)
        results.append((position, numbers[port.slice], count))
    for port in (*executable.inputs, *executable.outputs):
        local: Any = port.sharding.addressable_devices
        devices[port.slice] = tuple(sorted(device.id for device in local))
    allocated, temporaries = [], []
    for of_slice in analysis.values():
        new = max(of_slice.output_size_in_bytes - of_slice.alias_size_in_bytes, 0)
        beside = of_slice.peak_memory_in_bytes - of_slice.argument_size_in_bytes - new
        allocated.append(-(-new // of_slice.devices))
        temporaries.append(max(-(-beside // of_slice.devices), 0))
    return StepMemory(tuple(devices.values()), tuple(allocated), tuple(temporaries), tuple(results))


def shard_bytes(shape: Sequence[int], itemsize: int, sharding: jax.sharding.Sharding) -> int:
    """Returns the bytes of an array on each of its devices; 0 if these are in the memory of their host."""
    if sharding.memory_kind not in (None, "device", "unpinned_host"):
        return 0
    return math.prod(sharding.shard_shape(tuple(shape))) * itemsize


def describe(request: int, executable: Executable | None, *, text: bool) -> Iterator[Described]:
    """Yields the replies to `Describe`, which split the text.

    Args:
      executable: the program; None if it is not on this host.
      text: whether the text of XLA's modules is requested.
    """
    if executable is None:
        yield Described(request, {}, (), "", True, "the program is not on this host")
        return
    analysis = analyze(executable.plan, stats_of(executable.executables))
    memory = {name: dataclasses.astuple(of_slice) for name, of_slice in analysis.items()}
    flops = tuple((*pair, flops_of(loaded)) for pair, loaded in executable.executables.items())
    modules = device_text(executable.executables) if text else ""
    pieces = [modules[n : n + _CHARACTERS] for n in range(0, len(modules), _CHARACTERS)]
    yield Described(request, memory, flops, "", not pieces, None)
    for n, piece in enumerate(pieces, 1):
        yield Described(request, {}, (), piece, n == len(pieces), None)

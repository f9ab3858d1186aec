"""XLA programs of clients in a worker: compiled where they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import msgspec
import numpy as np

from pathways.runtime.hosts.protocol.messages import DeviceLayout, LoadForeign, StepMemory
from pathways.runtime.hosts.worker.array_store import sharding_of
from pathways.runtime.hosts.worker.program_description import shard_bytes
from pathways.runtime.hosts.worker.worker import Worker, WorkerProgram
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
from pathways.runtime.proxy.worker.tile_layouts import layout_of
from pathways.runtime.proxy.worker.xla_facts import XlaFacts, facts_of
from pathways.runtime.xla import compile_cache, ifrt, pjrt


class XlaModule(msgspec.Struct, frozen=True):
    """XLA program of a client.

    Attributes:
      module: StableHLO, as bytecode or as a portable artifact.
      options: a serialised `xla.CompileOptionsProto`; the devices that it has are not used.
      devices: the ids of its devices, in the order of shards.
      operands: the shape and the dtype of each operand.
      results: likewise.
    """

    module: bytes
    options: bytes
    devices: tuple[int, ...]
    operands: tuple[tuple[tuple[int, ...], str], ...]
    results: tuple[tuple[tuple[int, ...], str], ...]


class XlaDetails(msgspec.Struct, frozen=True):
    """Details of a compiled XLA program that few clients request: its HLO, and XLA's estimates."""

    text: str
    costs: dict[str, float]

    @classmethod
    def of(cls, executable: Any) -> XlaDetails:
        """Returns the details of an executable of XLA."""
        return cls(executable.get_hlo_text(), dict(executable.cost_analysis()))


class _XlaRunner:
    """Executable of an XLA program on arrays of hosts, whose devices may be in another order.

    Args:
      worker: the worker.
      program: the program.
      executable: the executable.
      facts: facts about it.
      unproved: the arrays that may fail on this host alone.

    Attributes:
      target: see `ForeignTarget`.
      is_shared: whether other hosts take part in its executions.
    """

    def __init__(
        self,
        worker: Worker,
        program: XlaModule,
        executable: Any,
        facts: XlaFacts,
        unproved: UnprovedArrays,
    ) -> None:
        self._executable = executable
        self._unproved = unproved
        by_id = {device.id: device for device in jax.devices()}
        devices = [by_id[number] for number in program.devices]
        on_host = own_devices(worker)
        local = [device for device in devices if device.id in on_host]
        self.is_shared = len(local) < len(devices)
        self._may_fail_alone = len(worker.island) > 1 and not self.is_shared
        self.target = ForeignTarget()
        # A launch on one device cannot wait for another one.
        self._limit = worker.in_flight.limiter(local) if len(devices) > 1 else None
        shardings = facts.operand_shardings or [b""] * len(program.operands)
        self._operands = [
            _Operand(shape, np.dtype(dtype), ifrt.sharding_on(devices, ifrt.hlo_sharding(hlo), None), local)
            for (shape, dtype), hlo in zip(program.operands, shardings, strict=True)
        ]
        shardings = facts.result_shardings or [b""] * len(program.results)
        self._makers = [
            _maker(shape, dtype, layout_of(program.devices, ifrt.hlo_sharding(hlo), len(shape), kind), local)
            for (shape, dtype), hlo, kind in zip(
                program.results, shardings, facts.result_memory_kinds, strict=True
            )
        ]

    def run(self, arguments: Sequence[Any]) -> list[jax.Array]:
        """Executes the program.

        On an island of several hosts a failed argument is replaced by zeros: a host that skips an execution
        pairs its next collective with this one of the other hosts.
        """
        operands = []
        for operand, argument in zip(self._operands, arguments, strict=True):
            error = self._unproved.error_of(argument) if self.is_shared else None
            self.target.missed = self.target.missed or error
            operands.append(operand.of(argument) if error is None else operand.zeros())
        issued = self._executable.execute_sharded(operands, self._limit is not None)
        results = issued.consume_with_handlers(self._makers)
        if self._limit is not None:
            token = issued.consume_token()
            self._limit(token)
            if self.is_shared:
                self.target.tokens.append(token)
        if self._may_fail_alone:
            self._unproved.add(results)
        return results


class _Operand:
    """Operand of a program: an array of any sharding whose shards the program can read."""

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        sharding: jax.sharding.Sharding,
        local: Sequence[jax.Device],
    ) -> None:
        self._shape = shape
        self._dtype = dtype
        self._sharding = sharding
        self._local = local
        self._make = ifrt.array_maker(shape, dtype, sharding)
        # Whether arrays of a sharding have the order of the program.
        self._has_order: dict[jax.sharding.Sharding, bool] = {}

    def of(self, array: jax.Array) -> jax.Array:
        """Returns an array in the order of the devices of the program."""
        has_order = self._has_order.get(array.sharding)
        if has_order is None:
            devices = [shard.device for shard in array.addressable_shards]
            has_order = self._has_order[array.sharding] = devices == self._local
        if has_order:
            return array
        shards = {shard.device: shard.data for shard in array.addressable_shards}
        return self._make([shards[device] for device in self._local])

    def zeros(self) -> jax.Array:
        """Returns zeros in place of an operand that failed."""
        shape, kind = self._sharding.shard_shape(self._shape), self._sharding.memory_kind
        return self._make([zeros_on(device, shape, self._dtype, kind) for device in self._local])


def _maker(
    shape: tuple[int, ...], dtype: str, layout: DeviceLayout, local: Sequence[jax.Device]
) -> Callable[[Sequence[jax.Array]], jax.Array]:
    """Returns a function that joins the shards of a result, in the order of the devices of its program."""
    by_id = {device.id: device for device in jax.devices()}
    make = ifrt.array_maker(shape, np.dtype(dtype), sharding_of(layout, by_id))
    positions = {device.id: position for position, device in enumerate(local)}
    order = [positions[number] for number in layout.devices if number in positions]
    if order == sorted(order):
        return make
    return lambda shards: make([shards[position] for position in order])


def _memory(program: XlaModule, facts: XlaFacts, on_host: Mapping[int, jax.Device]) -> StepMemory:
    """Returns the memory that an execution needs on the devices of this host, by XLA's analysis."""
    by_id = {device.id: device for device in jax.devices()}
    devices = tuple(number for number in program.devices if number in on_host)
    shardings = facts.result_shardings or [b""] * len(program.results)
    results = []
    for position, ((shape, dtype), hlo, kind) in enumerate(
        zip(program.results, shardings, facts.result_memory_kinds, strict=True)
    ):
        layout = layout_of(program.devices, ifrt.hlo_sharding(hlo), len(shape), kind)
        count = shard_bytes(shape, np.dtype(dtype).itemsize, sharding_of(layout, by_id))
        results.append((position, 0, count))
    stats = facts.memory or {}
    new = sum(count for *_, count in results) - stats.get("alias_size_in_bytes", 0)
    return StepMemory((devices,), (max(new, 0),), (stats.get("temp_size_in_bytes", 0),), tuple(results))


def load_xla(worker: Worker, unproved: UnprovedArrays, message: LoadForeign) -> tuple[WorkerProgram, bytes]:
    """Compiles and loads an XLA program, see `Worker.loaders`."""
    program = msgspec.msgpack.decode(message.body, type=XlaModule)
    operands, count = len(program.operands), len(program.results)
    if own_devices(worker).keys().isdisjoint(program.devices):
        return program_elsewhere(message.name, operands=operands, count=count), b""
    by_id = {device.id: device for device in jax.devices()}
    devices = [by_id[number] for number in program.devices]
    options = ifrt.compile_options(program.options)
    options.device_assignment = pjrt.device_assignment(devices)
    # Only where it is needed, because it imports scipy.
    if b"lapack_" in program.module:
        pjrt.initialize_lapack()
    module = pjrt.parse(program.module)
    executable = compile_cache.load_one(program.module, module, devices, options)
    facts = facts_of(executable)
    runner = _XlaRunner(worker, program, executable, facts, unproved)
    loaded = foreign_program(
        message.name,
        ForeignExecutable(
            runner.run,
            [ForeignOutput(f"of device {program.devices[0]}")] * count,
            lambda: msgspec.msgpack.encode(XlaDetails.of(executable)),
        ),
        runner.target,
        operands=operands,
        donated=facts.donated,
        runs_with_failed=runner.is_shared,
        memory=_memory(program, facts, own_devices(worker)),
    )
    return loaded, msgspec.msgpack.encode(facts)


def read_details(worker: Worker, message: LoadForeign) -> tuple[None, bytes]:
    """Returns the details of a program, see `Worker.loaders`."""
    executable: Any = worker.programs[message.about].executable
    return None, executable.details()

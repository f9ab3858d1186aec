"""The devices of workers on hosts."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np
from jaxlib.mlir import ir

from pathways.compiler.backends.ahead import share, steps_ahead
from pathways.compiler.backends.backend import Backend, Scheduled
from pathways.compiler.backends.hosts_executable import HostsExecutable
from pathways.compiler.backends.relocation import relocate
from pathways.compiler.lower.phases import ProgramError
from pathways.dialect import ops_named
from pathways.dialect.attributes.names import HOST
from pathways.dialect.operations.operation import attribute_of
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.passes.bind.bind_slices import BindSlices
from pathways.passes.bind.split_hosts import SplitHosts, make_room
from pathways.passes.manager.base import PassFailure
from pathways.passes.manager.driver import Diagnostics, run_passes
from pathways.passes.util.functions import erase_unused_functions
from pathways.runtime.hosts.controller.controller import Controller
from pathways.runtime.hosts.controller.host import WHOLE, HostGang, ReplicaPart
from pathways.runtime.hosts.controller.hosted import HostedProgram, HostPart, HostPort
from pathways.runtime.hosts.protocol.messages import DeviceLayout
from pathways.runtime.plan.lower import host_plans_of
from pathways.runtime.plan.plan import Argument, Plan, Replicas, Result, Send, Slot, Transfer
from pathways.runtime.resources.manager import Binding


class HostsBackend(Backend):
    """Workers on hosts: each gets its part of a program, and compiles what it runs.

    Args:
      controller: the controller of the workers.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def load(
        self,
        program: Scheduled,
        bindings: Mapping[str, Binding],
        code: Mapping[tuple[str, str], bytes | memoryview] | None = None,
    ) -> HostsExecutable:
        """See `Backend.load`; hosts compile everything, whatever code there is."""
        loaded = self._load(program, bindings)
        relocate_there = functools.partial(relocate, self._controller, self._load)
        return HostsExecutable(
            self._controller, loaded, program.plan, program.interface, program.signature, relocate_there
        )

    def _load(self, program: Scheduled, bindings: Mapping[str, Binding]) -> HostedProgram:
        plan = program.plan
        for computation in plan.computations.values():
            if computation.callbacks:
                raise ProgramError(
                    f"program '{plan.name}': computation {computation.name} calls back into Python "
                    "(jax.pure_callback, jax.debug.print, ...), but workers on hosts run no code of yours"
                )
        islands = {slice: int(binding.island.removeprefix("island")) for slice, binding in bindings.items()}
        gangs = self._controller.islands.current(sorted(set(islands.values())))
        split = _split(program.module, plan.name, islands)
        # Hosts of one island compute together, each waiting for all.
        together = any(len(gang.hosts) > 1 for gang in gangs)
        asked = self._controller.settings.options.ahead
        with split.context:
            ahead = steps_ahead(asked, split, plan, bindings, together=together)
            make_room(split, ahead)
        plans = host_plans_of(split, plan.name, program.stored, proved=True)
        working = [gang for gang in gangs if gang.number in plans]
        parts = {
            gang.number: _part(gang, plans[gang.number], _module_of(split, gang.number), program, bindings)
            for gang in working
        }
        loaded = self._controller.load(
            plan.name,
            working,
            parts,
            {name: binding.devices for name, binding in bindings.items()},
            crossing=sum(_count(part, Send) for part in plans.values()),
            inner=max((_count(part, Transfer) for part in plans.values()), default=0),
            share=share(asked, ahead),
        )
        owners = {
            slice: tuple(device.host.index for device in binding.devices)
            for slice, binding in bindings.items()
        }
        self._controller.traces.add(loaded, loaded.number, plan, owners)
        return loaded


def _count(plan: Plan, kind: type) -> int:
    return sum(isinstance(step, kind) for step in plan.steps)


def _part(
    gang: HostGang,
    plan: Plan,
    module: bytes,
    program: Scheduled,
    bindings: Mapping[str, Binding],
) -> HostPart:
    """What the hosts of an island get of a program."""
    paths, avals = program.interface.argument_paths, program.interface.out_avals
    passed = [
        (number, argument)
        for number, argument in zip(plan.argument_numbers, plan.arguments, strict=True)
        if argument.constant is None
    ]
    stored = program.stored
    return HostPart(
        module,
        _ports(gang, plan, passed, bindings),
        _ports(gang, plan, list(zip(plan.result_numbers, plan.results, strict=True)), bindings),
        tuple(paths[number] for number, _ in passed),
        tuple(bool(avals[number].weak_type) for number in plan.result_numbers),
        {} if stored is None else {name: stored.computations[name] for name in plan.computations},
        {} if stored is None else {name: np.asarray(stored.constants[name]) for name in plan.constants},
    )


def _split(module: ir.Module, name: str, islands: Mapping[str, int]) -> ir.Module:
    """The program in the form `host` with room for one step, in which all hosts of an island are one."""
    copy = ir.Module.parse(bytecode_of(module), module.context)
    hosts = ",".join(f"{slice}:{island}" for slice, island in islands.items())
    with Diagnostics(copy.context) as seen:
        try:
            run_passes(copy, [BindSlices(hosts=hosts), SplitHosts()], verify_each=False)
        except PassFailure:
            raise ProgramError(f"program '{name}': {seen.errors[0].message}") from None
    return copy


def _module_of(parts: ir.Module, host: int) -> bytes:
    """The function of one host with all that it needs."""
    module = ir.Module.parse(bytecode_of(parts), parts.context)
    for op in ops_named(module, ["func.func"]):
        number = attribute_of(op, HOST)
        if number is not None and number.value != host:
            op.operation.erase()
    erase_unused_functions(module)
    return bytecode_of(module)


def _ports(
    gang: HostGang,
    plan: Plan,
    values: Sequence[tuple[int, Argument | Result]],
    bindings: Mapping[str, Binding],
) -> tuple[HostPort, ...]:
    """Where arrays enter or leave a part, in the order in which it takes or returns them."""
    return tuple(
        HostPort(
            number,
            gang.location(_placement(plan, slot, bindings[slice]), _share(value.replicas, slice)),
        )
        for number, value in values
        for slice, slot in value.slots.items()
    )


def _share(replicas: Replicas | None, slice: str) -> ReplicaPart:
    """What of an array lies on a slice."""
    if replicas is None or replicas.split is None:
        return WHOLE
    replica = next(n for n, names in zip(replicas.numbers, replicas.slices, strict=True) if slice in names)
    return ReplicaPart(replica, replicas.count, replicas.split)


def _placement(plan: Plan, slot: Slot, binding: Binding) -> DeviceLayout:
    return DeviceLayout(
        tuple(device.id for device in binding.devices),
        binding.shape,
        binding.axis_names,
        plan.sharding(slot),
    )

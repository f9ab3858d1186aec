"""Splitting of a scheduled program into a program for each island."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir

from pathways.dialect import ops_named
from pathways.dialect.attributes.names import HOST
from pathways.dialect.errors import PathwaysError
from pathways.dialect.operations.operation import attribute_of
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.passes.analysis.functions import erase_unused_functions
from pathways.passes.bind.bind_slices import BindSlices
from pathways.passes.bind.split_hosts import SplitHosts, make_room
from pathways.passes.manager.base import PassFailure
from pathways.passes.manager.driver import Diagnostics, run_passes
from pathways.runtime.hosts.protocol.messages import DeviceLayout
from pathways.runtime.hosts.protocol.programs import (
    WHOLE_ARRAY,
    BoundProgram,
    IslandPort,
    IslandProgram,
    ReplicaBlock,
    SlicePlace,
    SplitProgram,
)
from pathways.runtime.hosts.splitting.ahead import share, steps_ahead
from pathways.runtime.plan.lower import host_plans_of
from pathways.runtime.plan.plan import Argument, Plan, Receive, Replicas, Result, Send, Slot, Transfer
from pathways.runtime.plan.stored import Stored


class SplitError(PathwaysError, ValueError):
    """Error of a program that cannot be split by islands."""

    __module__ = "pathways"


def split(
    program: BoundProgram, plan: Plan, context: ir.Context, ahead: int | str, *, multi_host: bool
) -> SplitProgram:
    """Splits a program by islands, with room for the steps of it that may be in flight.

    Args:
      program: the program, which must have been proved.
      context: the context to parse its module in.
      ahead: the setting of the user for steps in flight.
      multi_host: whether an island of it has several hosts, which run collectives in its computations.

    Raises:
      SplitError: it cannot be split.
    """
    islands = {name: place.island for name, place in program.slices.items()}
    module = _split(ir.Module.parse(program.module, context), program.name, islands)
    with module.context:
        steps = steps_ahead(ahead, module, plan, program.slices, multi_host=multi_host)
        make_room(module, steps)
    plans = host_plans_of(
        module, program.name, Stored.of(program.computations, program.constants), proved=True
    )
    return SplitProgram(
        {n: _island_program(plan, _module_of(module, n), program) for n, plan in plans.items()},
        crossing=sum(_count(plan, Send) for plan in plans.values()),
        inner=max((_count(plan, Transfer) for plan in plans.values()), default=0),
        share=share(ahead, steps),
    )


def _count(plan: Plan, kind: type) -> int:
    return sum(isinstance(step, kind) for step in plan.steps)


def _island_program(plan: Plan, module: bytes, program: BoundProgram) -> IslandProgram:
    """Returns the program of an island, from its plan and module."""
    passed = [
        (number, argument)
        for number, argument in zip(plan.argument_numbers, plan.arguments, strict=True)
        if argument.constant is None
    ]
    is_stored = bool(program.computations or program.constants)
    return IslandProgram(
        module,
        _ports(plan, passed, program.slices),
        _ports(plan, list(zip(plan.result_numbers, plan.results, strict=True)), program.slices),
        tuple(program.argument_names[number] for number, _ in passed),
        tuple(program.weak_results[number] for number in plan.result_numbers),
        {name: program.computations[name] for name in plan.computations} if is_stored else {},
        {name: program.constants[name] for name in plan.constants} if is_stored else {},
        sum(plan.bytes_moved(step) for step in plan.steps if isinstance(step, Receive)),
    )


def _split(module: ir.Module, name: str, islands: Mapping[str, int]) -> ir.Module:
    """Lowers a program to the form `host` with room for one step, with an island as one host."""
    hosts = ",".join(f"{slice}:{island}" for slice, island in islands.items())
    with Diagnostics(module.context) as seen:
        try:
            run_passes(module, [BindSlices(hosts=hosts), SplitHosts()], verify_each=False)
        except PassFailure:
            raise SplitError(f"program '{name}': {seen.errors[0].message}") from None
    return module


def _module_of(program: ir.Module, host: int) -> bytes:
    """Returns the bytecode of a module with the function of one host, and everything that it uses."""
    # A copy, made by a round trip through bytecode.
    module = ir.Module.parse(bytecode_of(program), program.context)
    for op in ops_named(module, ["func.func"]):
        number = attribute_of(op, HOST)
        if number is not None and number.value != host:
            op.operation.erase()
    erase_unused_functions(module)
    return bytecode_of(module)


def _ports(
    plan: Plan, values: Sequence[tuple[int, Argument | Result]], places: Mapping[str, SlicePlace]
) -> tuple[IslandPort, ...]:
    """Returns the ports of arguments or results of an island's program, in their order."""
    return tuple(
        IslandPort(
            number,
            _layout(plan, slot, places[slice]),
            _block(value.replicas, slice),
            donated=isinstance(value, Argument) and value.donated,
        )
        for number, value in values
        for slice, slot in value.slots.items()
    )


def _block(replicas: Replicas | None, slice: str) -> ReplicaBlock:
    """Returns the block of an array on a slice."""
    if replicas is None or replicas.split is None:
        return WHOLE_ARRAY
    replica = next(n for n, names in zip(replicas.numbers, replicas.slices, strict=True) if slice in names)
    return ReplicaBlock(replica, replicas.count, replicas.split)


def _layout(plan: Plan, slot: Slot, place: SlicePlace) -> DeviceLayout:
    kind = plan.memory_kind(slot)
    return DeviceLayout(place.devices, place.mesh, place.axis_names, plan.sharding(slot), kind)

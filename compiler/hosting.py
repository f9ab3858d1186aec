"""Compiles a scheduled program for workers on hosts: each gets its part, and compiles what it runs."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir

from pathways.compiler.arguments import Signature
from pathways.compiler.host_call import HostCall
from pathways.compiler.interface import Interface
from pathways.compiler.lowering import ProgramError
from pathways.dialect import ops_named
from pathways.dialect.names import HOST
from pathways.dialect.operation import attribute_of
from pathways.passes.base import PassFailure
from pathways.passes.bind.bind_slices import BindSlices
from pathways.passes.bind.split_hosts import SplitHosts
from pathways.passes.driver import Diagnostics, run_passes
from pathways.passes.util.functions import erase_unused_functions
from pathways.runtime.hosts.controller import AHEAD, Controller, HostPort
from pathways.runtime.hosts.messages import DeviceLayout
from pathways.runtime.plan.lower import host_plans_of
from pathways.runtime.plan.plan import Argument, Plan, Result, Send, Slot
from pathways.runtime.resources.manager import Binding


def compile_on_hosts(
    controller: Controller,
    module: ir.Module,
    plan: Plan,
    bindings: Mapping[str, Binding],
    interface: Interface,
    signature: Signature,
) -> HostCall:
    """Splits a program by the hosts of its slices, and compiles each part on its host.

    Args:
      controller: the controller of the hosts.
      module: the program in scheduled form; it stays as it is.
      plan: the same as a plan.
      bindings: the devices of each of its slices.
      interface: what it takes, returns and runs on.
      signature: what its arguments have to be.

    Raises:
      ProgramError: it calls back into Python.
      HostError: a host is gone, or cannot compile its part.
    """
    for computation in plan.computations.values():
        if computation.callbacks:
            raise ProgramError(
                f"program '{plan.name}': computation {computation.name} calls back into Python "
                "(jax.pure_callback, jax.debug.print, ...), but workers on hosts run no code of yours"
            )
    parts = _split(module, plan.name, bindings)
    plans = host_plans_of(parts, plan.name, proved=True)
    inputs = {
        host: _ports(part, part.argument_numbers, _passed(part), bindings) for host, part in plans.items()
    }
    outputs = {
        host: _ports(part, part.result_numbers, part.results, bindings) for host, part in plans.items()
    }
    indices = [step.index for part in plans.values() for step in part.steps if isinstance(step, Send)]
    program = controller.load(
        plan.name,
        {host: _module_of(parts, host) for host in plans},
        {name: tuple(device.id for device in binding.devices) for name, binding in bindings.items()},
        max(indices, default=-1) + 1,
        inputs,
        outputs,
        {
            host: tuple(
                interface.argument_paths[number]
                for number, argument in zip(part.argument_numbers, part.arguments, strict=True)
                if argument.constant is None
            )
            for host, part in plans.items()
        },
        {
            host: tuple(bool(interface.out_avals[number].weak_type) for number in part.result_numbers)
            for host, part in plans.items()
        },
    )
    return HostCall(controller, program, plan, interface, signature)


def _split(module: ir.Module, name: str, bindings: Mapping[str, Binding]) -> ir.Module:
    """The program in the form `host`."""
    copy = ir.Module.parse(_bytecode(module), module.context)
    hosts = ",".join(f"{slice}:{binding.devices[0].host.index}" for slice, binding in bindings.items())
    with Diagnostics(copy.context) as seen:
        try:
            run_passes(copy, [BindSlices(hosts=hosts), SplitHosts(ahead=AHEAD)], verify_each=False)
        except PassFailure:
            raise ProgramError(f"program '{name}': {seen.errors[0].message}") from None
    return copy


def _module_of(parts: ir.Module, host: int) -> bytes:
    """The function of one host with all that it needs."""
    module = ir.Module.parse(_bytecode(parts), parts.context)
    for op in ops_named(module, ["func.func"]):
        number = attribute_of(op, HOST)
        if number is not None and number.value != host:
            op.operation.erase()
    erase_unused_functions(module)
    return _bytecode(module)


def _bytecode(module: ir.Module) -> bytes:
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def _passed(plan: Plan) -> list[Argument | None]:
    """The arguments of a part; None for constants, which nobody passes."""
    return [None if argument.constant is not None else argument for argument in plan.arguments]


def _ports(
    plan: Plan,
    numbers: Sequence[int],
    values: Sequence[Argument | Result | None],
    bindings: Mapping[str, Binding],
) -> tuple[HostPort, ...]:
    """Where arrays enter or leave a part, in the order in which it takes or returns them."""
    assert plan.host is not None
    return tuple(
        HostPort(number, slice, plan.host, _placement(plan, slot, bindings[slice]))
        for number, value in zip(numbers, values, strict=True)
        if value is not None
        for slice, slot in value.slots.items()
    )


def _placement(plan: Plan, slot: Slot, binding: Binding) -> DeviceLayout:
    return DeviceLayout(
        tuple(device.id for device in binding.devices),
        binding.shape,
        binding.axis_names,
        plan.sharding(slot),
    )

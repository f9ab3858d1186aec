"""Programs in IFRT IR, as Shardy's MPMD compiler sends them, scheduled for devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir

from pathways.compiler.lower.phases import ProgramError, run_phases
from pathways.dialect import load_ifrt, make_context, ops_named
from pathways.dialect.attributes.names import DEVICE_IDS
from pathways.dialect.operations.operation import symbol_name
from pathways.passes.import_.mpmd.ifrt_slices import device_lists
from pathways.passes.import_.mpmd.import_ifrt import ifrt_function
from pathways.passes.import_.mpmd.slices import symbol_of
from pathways.passes.manager.base import PassFailure
from pathways.passes.manager.driver import Diagnostics
from pathways.passes.pipeline import Options
from pathways.runtime.plan.lower import plan_of
from pathways.runtime.proxy.loading.mpmd_source import MpmdInterface, MpmdSource
from pathways.runtime.proxy.loading.program_checks import check_module
from pathways.runtime.traces.file_trace import start_from_environment

_DIALECTS = ("builtin", "func", "ifrt", "stablehlo", "chlo", "sdy")


def schedule_ifrt(bytecode: bytes, devices: Sequence[Any], platform: str) -> MpmdSource:
    """Schedules a program of an untrusted client, with the passes, memory plan and proof of our own programs.

    Args:
      bytecode: a module in IFRT IR.
      devices: the devices that it numbers from 0; slices share a device that is listed twice.
      platform: the platform of the devices.

    Raises:
      ProgramError: it is not in IFRT IR, or cannot run on slices; names the operation or argument.
      StatusError: a computation is not allowed for clients.
    """
    context = make_context()
    load_ifrt(context)
    with Diagnostics(context) as seen:
        try:
            module = ir.Module.parse(bytecode, context)
            check_module(module, platform, _DIALECTS)
            name = symbol_of(symbol_name(module.operation) or "program")
            with context:
                function = ifrt_function(module)
                function.attributes[DEVICE_IDS] = ir.DenseI64ArrayAttr.get([device.id for device in devices])
                lists = device_lists(function)
        except (ir.MLIRError, ValueError, PassFailure) as error:
            text = seen.errors[0].message if seen.errors else str(error)
            raise ProgramError(f"no valid program in IFRT IR: {' '.join(text.split())[:500]}") from None
    forms = run_phases(module, name, Options())
    plan = plan_of(forms.scheduled, name, proved=True)
    by_id = {device.id: device for device in devices}
    names = [op.sym_name for op in ops_named(forms.scheduled, ["pw.slice"])]
    slices = {name: tuple(by_id[number] for number in ids) for name, ids in zip(names, lists, strict=True)}
    start_from_environment()
    passed = [argument for argument in plan.arguments if argument.constant is None]
    return MpmdSource(
        forms.scheduled,
        plan,
        None,
        MpmdInterface.of(plan, devices, slices, by_port=False),
        tuple(str(number) for number in range(len(passed))),
    )

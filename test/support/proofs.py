"""What the tests of random programs share: where the programs run, and the proof of their schedules."""

from __future__ import annotations

from jaxlib.mlir import ir

import pathways as pw
from pathways.dialect import make_context
from pathways.passes.manager.driver import run_passes
from pathways.passes.schedule.verify_schedule import VerifySchedule


def three_slices() -> list[pw.VirtualSlice]:
    """Two slices of one device and one of two."""
    devices = pw.make_virtual_device_set()
    return [devices.add_slice(shape, "x") for shape in (1, 1, 2)]


def prove(scheduled: str) -> None:
    """Runs `pw-verify-schedule` on the text of a program."""
    with make_context() as context:
        run_passes(ir.Module.parse(scheduled, context), [VerifySchedule()])

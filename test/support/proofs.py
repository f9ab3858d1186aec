"""Slices, proofs of schedules and comparisons for tests of random programs."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir

import pathways as pw
from pathways.dialect import make_context
from pathways.passes.manager.driver import run_passes
from pathways.passes.schedule.verify_schedule import VerifySchedule


def three_slices() -> list[pw.VirtualSlice]:
    """Returns two slices of one device and one of two."""
    devices = pw.make_virtual_device_set()
    return [devices.add_slice(shape, "x") for shape in (1, 1, 2)]


def prove(scheduled: str) -> None:
    """Runs `pw-verify-schedule` on the text of a program."""
    with make_context() as context:
        run_passes(ir.Module.parse(scheduled, context), [VerifySchedule()])


def assert_agrees(got: Any, want: Any) -> None:
    """Checks that trees agree in structure, types and values, up to rounding of values that may cancel
    out."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        error = np.linalg.norm(np.asarray(a, np.float64) - np.asarray(b, np.float64))
        assert error <= 1e-5 * max(np.linalg.norm(b), np.sqrt(np.size(b)) * 1e-2)

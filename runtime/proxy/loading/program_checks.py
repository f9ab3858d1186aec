"""Checks of the programs of clients before XLA, which does not make them, gets them."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

from jaxlib.mlir import ir

from pathways.dialect.operations.operation import nested_ops, printed
from pathways.runtime.bundle.custom_calls import CLIENT_CALLS, bound_sparse_indices
from pathways.runtime.bundle.program import custom_calls, problem_of
from pathways.runtime.proxy.arrays.placements import checked_shape
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError
from pathways.runtime.xla import pjrt

_DIALECTS = ("builtin", "func", "stablehlo", "chlo", "sdy")


def check_module(module: ir.Module, platform: str, dialects: Collection[str] = _DIALECTS) -> None:
    """Checks that the server may compile a module, and prepares its custom calls.

    Args:
      dialects: the dialects that it may use.

    Raises:
      StatusError: the server must not compile it.
    """
    problem = problem_of(module, "a program", dialects, CLIENT_CALLS, advice="")
    if problem is not None:
        raise StatusError(StatusCode.UNIMPLEMENTED, f"the program {problem}")
    _check_shapes(module, platform)
    _check_meshes(module)
    bound_sparse_indices(module)
    if any(call.startswith("lapack_") for call in custom_calls(module)):
        pjrt.initialize_lapack()


_MESH = re.compile(rb'<\[("(?:[^"\\]|\\.)*"=\d+(?:, )?)+\]')
_AXIS_SIZE = re.compile(rb'"=(\d+)')
_MAX_MESH = 1 << 20
"""Maximum of devices of a mesh in a program. XLA does not check the number for overflow."""


def _check_meshes(module: ir.Module) -> None:
    """Checks the sizes of meshes, which shardings refer to or contain.

    Raises:
      StatusError: one is too large.
    """
    for mesh in _MESH.finditer(printed(module)):
        sizes = [int(size) for size in _AXIS_SIZE.findall(mesh[0])]
        if math.prod(sizes) > _MAX_MESH:
            raise StatusError(StatusCode.INVALID_ARGUMENT, f"the program has a mesh of {sizes[:8]}")


_MAX_CPU_SIZE = 1 << 35
"""Maximum of elements of a value: with more, XLA divides by zero when it distributes work over threads."""


def _check_shapes(module: ir.Module, platform: str) -> None:
    """Checks the sizes of all values of a module, which XLA multiplies without a check for overflow.

    Raises:
      StatusError: one is too large.
    """
    types: set[ir.Type] = set()

    for op in nested_ops(module.operation.opview):
        types.update(value.type for value in op.results)
        types.update(value.type for region in op.regions for block in region for value in block.arguments)
    for type_ in types:
        if isinstance(type_, ir.RankedTensorType) and type_.has_static_shape:
            size = math.prod(checked_shape(type_.shape))
            if platform == "cpu" and size > _MAX_CPU_SIZE:
                raise StatusError(
                    StatusCode.RESOURCE_EXHAUSTED,
                    f"the program has a value of {size} elements; XLA computes at most {_MAX_CPU_SIZE} "
                    "on a CPU",
                )

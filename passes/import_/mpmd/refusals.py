"""Refusals of contents of Shardy's `mpmd` programs that this compiler does not support: one error each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from jaxlib.mlir import ir

from pathways.dialect import nested_ops
from pathways.dialect.attributes.names import ARGUMENT_INFO, MEMORY_KIND, RESULT_INFO
from pathways.passes.import_.mpmd.mesh_tensors import MeshTensor
from pathways.passes.manager.base import fail

UNPARTITIONED = frozenset(
    f"mpmd.{name}"
    for name in (
        "named_computation",
        "named_tensor",
        "call",
        "for",
        "assign",
        "unassign",
        "broadcast",
        "reduce",
    )
)
"""Operations that are there before Shardy has partitioned a program."""

_LAYOUT = "mhlo.layout_mode"
_DEVICE = "device"
_CPU = "/cpu"


def refuse_unpartitioned(module: ir.Module) -> None:
    """Refuses a program that is still to be partitioned.

    Raises:
      PassFailure: it is.
    """
    for op in nested_ops(module.operation.opview):
        if op.operation.name in UNPARTITIONED:
            fail(op, "is not partitioned yet: only what Shardy's `lower()` has split into fragments can run")


def refuse_cpu_meshes(function: ir.OpView, topology: Mapping[str, object]) -> None:
    """Refuses meshes of the CPU devices beside others.

    Raises:
      PassFailure: there is one.
    """
    for name in topology:
        if name.endswith(_CPU):
            fail(function, f'has the mesh "{name}" of CPUs beside accelerators, which cannot become a slice')


def refuse_type(op: ir.OpView, subject: str, type_: ir.Type) -> NoReturn:
    """Refuses values that order side effects, and all values that are not arrays on a mesh.

    Raises:
      PassFailure: always.
    """
    if "token" in str(type_):
        fail(
            op,
            f"{subject} is a token: ordered side effects (ordered=True) cannot be kept in order over slices",
        )
    fail(op, f"{subject} is a {type_}, not an array on a mesh of the topology")


def refuse_ports(
    function: ir.OpView,
    side: str,
    all_attrs: Sequence[Mapping[str, ir.Attribute]],
    values: Sequence[MeshTensor],
) -> None:
    """Refuses arguments or results in other memory than the device's, or with a layout of their own.

    Raises:
      PassFailure: there is one.
    """
    for number, (attrs, value) in enumerate(zip(all_attrs, values, strict=True)):
        info = attrs.get(ARGUMENT_INFO if side == "argument" else RESULT_INFO)
        name = f"{side} {info.value}" if isinstance(info, ir.StringAttr) else f"{side} #{number}"
        written = attrs.get(MEMORY_KIND)
        for kind in (value.memory_kind, written.value if isinstance(written, ir.StringAttr) else None):
            if kind not in (None, _DEVICE):
                fail(
                    function,
                    f"{name} is in '{kind}' memory; only the default memory of the device is supported",
                )
        layout = attrs.get(_LAYOUT)
        if isinstance(layout, ir.StringAttr) and layout.value != "default":
            fail(
                function,
                f"{name} has the layout {layout}; between computations only XLA's default is supported",
            )

"""The `pw` dialect: its context, operations, forms and verifier. Imports jaxlib's MLIR alone; never jax.

Names are imported when they are first used: what needs plain data (`origins`, `meshes`, `names`) loads none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathways.dialect.attributes.origins import Origin
    from pathways.dialect.operations.bindings import inlined_func_call, make_context
    from pathways.dialect.operations.loops import loop_of, loop_of_op, set_loop
    from pathways.dialect.operations.operation import (
        PwOp,
        nested_ops,
        op_has,
        ops_named,
        referenced_symbols,
        symbol_table,
    )
    from pathways.dialect.operations.ops import (
        OPERATIONS,
        AllGatherOp,
        AllReduceOp,
        CarryOp,
        ChannelOp,
        ConstantOp,
        IndexOp,
        LaunchOp,
        LoopOp,
        MirrorOp,
        NextOp,
        RecvOp,
        ReduceOp,
        ReduceScatterOp,
        ReleaseOp,
        ReplicaOp,
        SendOp,
        SliceOp,
        SplitOp,
        TransferOp,
    )
    from pathways.dialect.operations.placement import (
        Slices,
        argument_attrs,
        argument_slices,
        donated_arguments,
        make_slices,
        read_slices,
        result_attrs,
        result_slices,
        set_argument_attrs,
        set_result_attrs,
        slices_of,
        slices_of_op,
    )
    from pathways.dialect.operations.traits import Trait
    from pathways.dialect.verification.forms import FORMS, Form, form_of, set_form
    from pathways.dialect.verification.verifier import problems, verify

_MODULES = {
    "AllGatherOp": "operations.ops",
    "AllReduceOp": "operations.ops",
    "CarryOp": "operations.ops",
    "ChannelOp": "operations.ops",
    "ConstantOp": "operations.ops",
    "FORMS": "verification.forms",
    "Form": "verification.forms",
    "IndexOp": "operations.ops",
    "LaunchOp": "operations.ops",
    "LoopOp": "operations.ops",
    "MirrorOp": "operations.ops",
    "NextOp": "operations.ops",
    "OPERATIONS": "operations.ops",
    "Origin": "attributes.origins",
    "PwOp": "operations.operation",
    "RecvOp": "operations.ops",
    "ReduceOp": "operations.ops",
    "ReduceScatterOp": "operations.ops",
    "ReleaseOp": "operations.ops",
    "ReplicaOp": "operations.ops",
    "SendOp": "operations.ops",
    "SliceOp": "operations.ops",
    "Slices": "operations.placement",
    "SplitOp": "operations.ops",
    "Trait": "operations.traits",
    "TransferOp": "operations.ops",
    "argument_attrs": "operations.placement",
    "argument_slices": "operations.placement",
    "donated_arguments": "operations.placement",
    "form_of": "verification.forms",
    "inlined_func_call": "operations.bindings",
    "loop_of": "operations.loops",
    "loop_of_op": "operations.loops",
    "make_context": "operations.bindings",
    "make_slices": "operations.placement",
    "nested_ops": "operations.operation",
    "op_has": "operations.operation",
    "ops_named": "operations.operation",
    "problems": "verification.verifier",
    "read_slices": "operations.placement",
    "referenced_symbols": "operations.operation",
    "result_attrs": "operations.placement",
    "result_slices": "operations.placement",
    "set_argument_attrs": "operations.placement",
    "set_form": "verification.forms",
    "set_loop": "operations.loops",
    "set_result_attrs": "operations.placement",
    "slices_of": "operations.placement",
    "slices_of_op": "operations.placement",
    "symbol_table": "operations.operation",
    "verify": "verification.verifier",
}

__all__ = [
    "FORMS",
    "OPERATIONS",
    "AllGatherOp",
    "AllReduceOp",
    "CarryOp",
    "ChannelOp",
    "ConstantOp",
    "Form",
    "IndexOp",
    "LaunchOp",
    "LoopOp",
    "MirrorOp",
    "NextOp",
    "Origin",
    "PwOp",
    "RecvOp",
    "ReduceOp",
    "ReduceScatterOp",
    "ReleaseOp",
    "ReplicaOp",
    "SendOp",
    "SliceOp",
    "Slices",
    "SplitOp",
    "Trait",
    "TransferOp",
    "argument_attrs",
    "argument_slices",
    "donated_arguments",
    "form_of",
    "inlined_func_call",
    "loop_of",
    "loop_of_op",
    "make_context",
    "make_slices",
    "nested_ops",
    "op_has",
    "ops_named",
    "problems",
    "read_slices",
    "referenced_symbols",
    "result_attrs",
    "result_slices",
    "set_argument_attrs",
    "set_form",
    "set_loop",
    "set_result_attrs",
    "slices_of",
    "slices_of_op",
    "symbol_table",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value

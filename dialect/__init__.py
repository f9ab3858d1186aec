"""The `pw` dialect: its context, operations, forms and verifier. Imports jaxlib's MLIR alone; never jax.

Names are imported when they are first used: what needs plain data (`origins`, `meshes`, `names`) loads none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathways.dialect.bindings import inlined_func_call, make_context
    from pathways.dialect.forms import FORMS, Form, form_of, set_form
    from pathways.dialect.loops import loop_of, loop_of_op, set_loop
    from pathways.dialect.operation import (
        PwOp,
        nested_ops,
        op_has,
        ops_named,
        referenced_symbols,
        symbol_table,
    )
    from pathways.dialect.ops import (
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
    from pathways.dialect.origins import Origin
    from pathways.dialect.placement import (
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
    from pathways.dialect.traits import Trait
    from pathways.dialect.verifier import problems, verify

_MODULES = {
    "AllGatherOp": "ops",
    "AllReduceOp": "ops",
    "CarryOp": "ops",
    "ChannelOp": "ops",
    "ConstantOp": "ops",
    "FORMS": "forms",
    "Form": "forms",
    "IndexOp": "ops",
    "LaunchOp": "ops",
    "LoopOp": "ops",
    "MirrorOp": "ops",
    "NextOp": "ops",
    "OPERATIONS": "ops",
    "Origin": "origins",
    "PwOp": "operation",
    "RecvOp": "ops",
    "ReduceOp": "ops",
    "ReduceScatterOp": "ops",
    "ReleaseOp": "ops",
    "ReplicaOp": "ops",
    "SendOp": "ops",
    "SliceOp": "ops",
    "Slices": "placement",
    "SplitOp": "ops",
    "Trait": "traits",
    "TransferOp": "ops",
    "argument_attrs": "placement",
    "argument_slices": "placement",
    "donated_arguments": "placement",
    "form_of": "forms",
    "inlined_func_call": "bindings",
    "loop_of": "loops",
    "loop_of_op": "loops",
    "make_context": "bindings",
    "make_slices": "placement",
    "nested_ops": "operation",
    "op_has": "operation",
    "ops_named": "operation",
    "problems": "verifier",
    "read_slices": "placement",
    "referenced_symbols": "operation",
    "result_attrs": "placement",
    "result_slices": "placement",
    "set_argument_attrs": "placement",
    "set_form": "forms",
    "set_loop": "loops",
    "set_result_attrs": "placement",
    "slices_of": "placement",
    "slices_of_op": "placement",
    "symbol_table": "operation",
    "verify": "verifier",
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

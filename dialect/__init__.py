"""The `pw` dialect: its context, operations, placement and verifier. Never imports jax."""

from pathways.dialect.bindings import inlined_func_call, make_context
from pathways.dialect.operation import OPERATIONS, PwOp, ops_named, symbol_table
from pathways.dialect.ops import (
    ChannelOp,
    ConstantOp,
    LaunchOp,
    LoopOp,
    MirrorOp,
    ReleaseOp,
    SliceOp,
    TransferOp,
)
from pathways.dialect.placement import (
    SLICE,
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
)
from pathways.dialect.verifier import FORM, FORMS, form_of, set_form, verify

__all__ = [
    "FORM",
    "FORMS",
    "OPERATIONS",
    "SLICE",
    "ChannelOp",
    "ConstantOp",
    "LaunchOp",
    "LoopOp",
    "MirrorOp",
    "PwOp",
    "ReleaseOp",
    "SliceOp",
    "Slices",
    "TransferOp",
    "argument_attrs",
    "argument_slices",
    "donated_arguments",
    "form_of",
    "inlined_func_call",
    "make_context",
    "make_slices",
    "ops_named",
    "read_slices",
    "result_attrs",
    "result_slices",
    "set_argument_attrs",
    "set_form",
    "set_result_attrs",
    "slices_of",
    "symbol_table",
    "verify",
]

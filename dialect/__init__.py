"""The `pw` dialect: its context, operations, forms and verifier. Imports jaxlib's MLIR alone; never jax.

Names are imported when they are first used: what needs plain data (`origins`, `meshes`, `names`) loads none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathways.dialect.attributes.origins import Origin
    from pathways.dialect.operations.bindings import (
        inlined_func_call,
        load_ifrt,
        make_context,
        run_mlir_passes,
    )
    from pathways.dialect.operations.loops import loop_of, loop_of_op, set_loop
    from pathways.dialect.operations.operation import (
        PwOp,
        nested_ops,
        only_computes,
        op_has,
        ops_named,
        referenced_symbols,
        symbol_table,
    )
    from pathways.dialect.operations.ops import *  # noqa: F403
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
    "FORMS": "verification.forms",
    "Form": "verification.forms",
    "OPERATIONS": "operations.ops",
    "Origin": "attributes.origins",
    "PwOp": "operations.operation",
    "Slices": "operations.placement",
    "Trait": "operations.traits",
    "argument_attrs": "operations.placement",
    "argument_slices": "operations.placement",
    "donated_arguments": "operations.placement",
    "form_of": "verification.forms",
    "inlined_func_call": "operations.bindings",
    "load_ifrt": "operations.bindings",
    "loop_of": "operations.loops",
    "loop_of_op": "operations.loops",
    "make_context": "operations.bindings",
    "make_slices": "operations.placement",
    "nested_ops": "operations.operation",
    "only_computes": "operations.operation",
    "op_has": "operations.operation",
    "ops_named": "operations.operation",
    "problems": "verification.verifier",
    "read_slices": "operations.placement",
    "referenced_symbols": "operations.operation",
    "result_attrs": "operations.placement",
    "result_slices": "operations.placement",
    "set_argument_attrs": "operations.placement",
    "run_mlir_passes": "operations.bindings",
    "set_form": "verification.forms",
    "set_loop": "operations.loops",
    "set_result_attrs": "operations.placement",
    "slices_of": "operations.placement",
    "slices_of_op": "operations.placement",
    "symbol_table": "operations.operation",
    "verify": "verification.verifier",
}


def __getattr__(name: str) -> Any:
    # The operations are listed in `operations/ops.py` alone.
    module = _MODULES.get(name, "operations.ops" if name.endswith("Op") else None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value

"""The `pw` dialect: its context, operations, forms and verifier. Imports jaxlib's MLIR alone; never jax.

Names are imported when they are first used: importers of plain data (`origins`, `meshes`, `names`) load none.
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

_NAMES = {
    "attributes.origins": "Origin",
    "operations.bindings": "inlined_func_call load_ifrt make_context run_mlir_passes",
    "operations.loops": "loop_of loop_of_op set_loop",
    "operations.operation": "PwOp nested_ops only_computes op_has ops_named referenced_symbols symbol_table",
    "operations.ops": "OPERATIONS",
    "operations.placement": "Slices argument_attrs argument_slices donated_arguments make_slices read_slices "
    "result_attrs result_slices set_argument_attrs set_result_attrs slices_of slices_of_op",
    "operations.traits": "Trait",
    "verification.forms": "FORMS Form form_of set_form",
    "verification.verifier": "problems verify",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    # The operations are listed in `operations/ops.py` alone.
    module = _MODULES.get(name, "operations.ops" if name.endswith("Op") else None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*_MODULES, *importlib.import_module(f"{__name__}.operations.ops").__all__]

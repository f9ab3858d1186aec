"""Function `@main` of an imported program, which replaces the one that Shardy wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from pathways.dialect import set_argument_attrs, set_result_attrs
from pathways.dialect.attributes.names import MAIN
from pathways.passes.analysis.functions import erase_unused_functions, merge_equal_functions

Port = tuple[ir.Type, dict[str, ir.Attribute]]
"""Type and attributes of an argument or a result."""


def rebuild_main(
    old: ir.OpView,
    arguments: Sequence[Port],
    results: Sequence[Port],
    operations: Iterable[ir.OpView],
    values: dict[ir.Value, ir.Value],
    build: Callable[[ir.OpView], None],
) -> None:
    """Builds `@main` anew, operation by operation.

    Args:
      old: the function that it replaces.
      operations: the operations of the old function.
      values: the replacement of each value; the arguments are added first.
      build: builds the replacement of an operation, and adds its results to `values`.
    """
    signature = ir.FunctionType.get([type_ for type_, _ in arguments], [type_ for type_, _ in results])
    with ir.InsertionPoint(old), old.location:
        new = func.FuncOp(MAIN, signature, visibility="public")
    block = new.add_entry_block([argument.location for argument in old.arguments])
    set_argument_attrs(new, [attrs for _, attrs in arguments])
    set_result_attrs(new, [attrs for _, attrs in results])
    values.update(zip(old.arguments, block.arguments, strict=True))
    with ir.InsertionPoint(block):
        for op in operations:
            build(op)
    old.operation.erase()


def tidy_module(module: ir.Module) -> None:
    """Drops attributes of JAX, unused functions and equal functions of an imported module."""
    for name in [n for n in module.operation.attributes if n.startswith("mhlo.")]:
        del module.operation.attributes[name]
    erase_unused_functions(module)
    merge_equal_functions(module)

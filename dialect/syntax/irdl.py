"""Export of the `pw` dialect as IRDL, with which a stock `mlir-opt` checks `pw` operations.

IRDL defines dialects as data. It knows required attributes, their kinds, and numbers of operands and
results. It cannot express that an attribute may be absent, so optional ones are left out; nor the targets of
symbols, nor the rules of `PwOp.check` and of the verifier of whole modules.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from jaxlib.mlir import ir

from pathways.dialect.attributes.fields import Attr, Values
from pathways.dialect.operations.operation import OPERATIONS, PwOp

_SEGMENTS = {"operands": "operandSegmentSizes", "results": "resultSegmentSizes"}
"""The attributes that give MLIR the sizes of groups of values of an operation."""


def export(module: ir.Module) -> str:
    """Returns the dialect as IRDL for a module, and annotates the module so that `mlir-opt --irdl-file`
    accepts it.

    In IRDL, variadic operands or results all have one type. Where an operation has values of several
    types, each run of equal types becomes a group of its own: the dialect declares as many groups as the
    operation needs in this module, and each operation receives the attribute that gives their sizes.
    """
    operations = [op for op in _operations(module.operation) if isinstance(op, PwOp)]
    lines = ["irdl.dialect @pw {"]
    for name, declared in OPERATIONS.items():
        groups = {
            kind: _group(
                [op for op in operations if op.operation.name == name], kind, _values(declared, kind)
            )
            for kind in _SEGMENTS
        }
        lines += [f"  {line}" for line in _operation(name, declared, groups)]
    return "\n".join([*lines, "}\n"])


def _operations(parent: ir.Operation) -> Iterator[ir.OpView]:
    """Yields the operations of the module and the direct ones of its functions: `pw` has no others."""
    for op in parent.regions[0].blocks[0].operations:
        yield op
        for region in op.regions:
            for block in region.blocks:
                yield from block.operations


def _values(op: type[PwOp], kind: str) -> Values:
    return op.inputs if kind == "operands" else op.outputs


def _group(operations: Sequence[PwOp], kind: str, declared: Values) -> int:
    """Groups the operands or results of all operations of one name; returns the number of groups."""
    if declared.count is not None or declared.one_type:
        return 1
    runs = [_runs(value.type for value in getattr(op, kind)) for op in operations]
    groups = max([1, *map(len, runs)])
    if groups > 1:
        for op, sizes in zip(operations, runs, strict=True):
            # All operations of one name share a declaration: where one has fewer runs, its last groups are
            # empty.
            padded = [*sizes, *[0] * (groups - len(sizes))]
            op.attributes[_SEGMENTS[kind]] = ir.DenseI32ArrayAttr.get(padded, op.context)
    return groups


def _runs(types: Iterable[ir.Type]) -> list[int]:
    return [len(list(run)) for _, run in itertools.groupby(types)]


def _operation(name: str, op: type[PwOp], groups: dict[str, int]) -> list[str]:
    required = [field for field in op.fields().values() if field.required]
    lines = [f"irdl.operation @{name.removeprefix('pw.')} {{"]
    for field in required:
        lines += [f"  {line}" for line in _attribute(field)]
    names = ", ".join(f'"{field.name}" = %{field.name}' for field in required)
    lines += [f"  irdl.attributes {{{names}}}"] if names else []
    for kind, number in groups.items():
        lines += [f"  {line}" for line in _value_lines(kind, _values(op, kind), number)]
    return [*lines, "}"]


def _attribute(field: Attr[object]) -> list[str]:
    """Returns the constraint of an attribute, defined as the value of its name."""
    alternatives = field.kind.irdl
    if len(alternatives) == 1:
        return [f"%{field.name} = irdl.{alternatives[0]}"]
    names = [f"%{field.name}_{number}" for number in range(len(alternatives))]
    lines = [f"{name} = irdl.{constraint}" for name, constraint in zip(names, alternatives, strict=True)]
    return [*lines, f"%{field.name} = irdl.any_of({', '.join(names)})"]


def _value_lines(kind: str, declared: Values, groups: int) -> list[str]:
    """Returns the declaration of the operands or results; no lines if there are none."""
    number = groups if declared.count is None else declared.count
    if number == 0:
        return []
    variadic = "variadic " if declared.count is None else ""
    # Each use of a constraint is one type, so each value has its own.
    names = [f"{kind}_{n}" for n in range(number)]
    uses = ", ".join(f"{name}: {variadic}%{name}" for name in names)
    return [*(f"%{name} = irdl.any" for name in names), f"irdl.{kind}({uses})"]

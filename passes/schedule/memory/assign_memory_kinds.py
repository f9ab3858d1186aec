"""`pw-assign-memory-kinds`: the memory that each value between launches is in."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from jaxlib.mlir import ir

import pathways.dialect as dialect
from pathways.dialect.attributes.names import MEMORY_KIND, RESULT_INFO
from pathways.dialect.operations.traits import Trait
from pathways.dialect.relations.program_view import ProgramView, read_function
from pathways.dialect.verification.forms import ORDERED
from pathways.passes.analysis.computations import Computations
from pathways.passes.analysis.memory_kinds import Kind, Kinds, kinds_of_values, named, uses_memory_kinds
from pathways.passes.manager.base import Pass, fail, main_function


@dataclasses.dataclass(frozen=True)
class AssignMemoryKinds(Pass):
    """Decides in which memory of its devices each value between launches is.

    1. An argument of `@main` is in the memory that its `mhlo.memory_kind` names, and in the default memory of
       devices without one. Inside of a computation values move to another memory where JAX's custom call
       `annotate_device_placement` says so; results that are computed from a value in `pinned_host` memory are
       there, too, as in the types of JAX. A transfer keeps the memory of its operand.
    2. Arguments and results of computations get `mhlo.memory_kind`, transfers `memory_kind`. Computations
       that are launched with arguments in different memories become variants.

    ```mlir
    // before
    %0 = pw.launch @offload(%arg0) on @s0 order 0
    %1 = pw.transfer %0 to @s1 over @c0 order 1
    // after
    %0 = pw.launch @offload(%arg0) on @s0 order 0
    %1 = pw.transfer %0 to @s1 over @c0 order 1 {memory_kind = "pinned_host"}
    ```

    Requires: launches and transfers with `order`; memory not planned yet: no buffer is another memory's.
    Guarantees: operands of a launch are in the memory that its computation expects, and results of `@main` in
    that of their `mhlo.memory_kind`. Programs that only use the default memory are left alone.
    """

    name: ClassVar[str] = "pw-assign-memory-kinds"
    input_forms = (ORDERED,)

    def run(self, module: ir.Module) -> None:
        program = read_function(module, dialect.symbol_table(module), main_function(module))
        if uses_memory_kinds(program):
            _Assignment(program).run()


class _Assignment:
    """Assignment of memory kinds to the values of a program."""

    def __init__(self, program: ProgramView) -> None:
        self.program = program
        self.computations = Computations(program.module, dict(program.symbols))
        self.kinds: dict[ir.Value, Kind] = {}
        # The kinds of results of launches that are results of the program.
        self.returned: dict[ir.Value, Kind] = {}

    def run(self) -> None:
        # A result of the program in another memory than in its computation changes the memory of all values
        # that are computed from it.
        for _ in range(1 + len(self.program.results)):
            self.kinds = kinds_of_values(self.program, self.returned)
            if not self.settle_results():
                break
        self.write()

    def operands(self, read: Sequence[ir.Value]) -> Kinds:
        return tuple(self.kinds[value] for value in read)

    def settle_results(self) -> bool:
        """Compares the results of the program with their computations; returns whether to infer again."""
        changed = False
        for number, (value, attrs) in enumerate(
            zip(self.program.terminator.operands, self.program.results, strict=True)
        ):
            expected = attrs[MEMORY_KIND].value if MEMORY_KIND in attrs else None
            if self.kinds[value] == expected:
                continue
            if isinstance(value, ir.BlockArgument) or not isinstance(value.owner.opview, dialect.LaunchOp):
                name = attrs[RESULT_INFO].value if RESULT_INFO in attrs else f"result #{number}"
                fail(
                    self.program.terminator,
                    f"returns {name} in {named(expected)} memory, but it is passed on in "
                    f"{named(self.kinds[value])} memory: compute it in a placed function, or put it there",
                )
            if value in self.returned:
                fail(self.program.terminator, f"returns result #{number} in two memories")
            self.returned[value] = expected
            changed = True
        return changed

    def write(self) -> None:
        variants: dict[tuple[str, Kinds, Kinds], str] = {}
        first: dict[str, tuple[Kinds, Kinds]] = {}
        for op, read, produced in zip(
            self.program.ops, self.program.reads, self.program.produces, strict=True
        ):
            if dialect.op_has(op, Trait.TRANSFERS):
                op.memory_kind = self.kinds[produced[0]]
            if not isinstance(op, dialect.LaunchOp):
                continue
            kinds = self.operands(read), self.operands(produced)
            if first.setdefault(op.callee, kinds) == kinds:
                continue
            key = (op.callee, *kinds)
            if key not in variants:
                copy = self.computations.variant(op.callee, f"{op.callee}_in_memory")
                variants[key] = copy.attributes["sym_name"].value
                first[variants[key]] = kinds
            op.callee = variants[key]
        for name, (operands, results) in first.items():
            function = self.computations.symbols[name]
            if any(operands):
                dialect.set_argument_attrs(function, _with_kinds(dialect.argument_attrs(function), operands))
            if any(results):
                dialect.set_result_attrs(function, _with_kinds(dialect.result_attrs(function), results))


def _with_kinds(ports: list[dict[str, ir.Attribute]], kinds: Kinds) -> list[dict[str, ir.Attribute]]:
    return [
        attrs if kind is None else {**attrs, MEMORY_KIND: ir.StringAttr.get(kind)}
        for attrs, kind in zip(ports, kinds, strict=True)
    ]

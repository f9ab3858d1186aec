"""Verifier of modules, as a registered C++ dialect has one, by the form that a module claims or must be in.

The checks build on each other: first that all contents can be read, and each operation by itself
(`wellformed.py`), then the table of forms, and finally the relations between operations. A step does not run
on a module in which an earlier one has found an error.

Errors go to the context's diagnostic handlers in MLIR's form (`'pw.transfer' op expected ...`) at the
location of the operation. All errors of a step are reported, not only the first.
"""

from __future__ import annotations

import dataclasses
import itertools

from jaxlib.mlir import ir

from pathways.dialect.attributes.names import FORM
from pathways.dialect.operations.operation import attribute_of, parts_of
from pathways.dialect.relations.program_view import ProgramView, Report, read_hosts, read_program
from pathways.dialect.relations.relations import calls_of_symbols_end
from pathways.dialect.verification.forms import FORMS, PARTS, UNCLAIMED, Form, foreign_form, form_of
from pathways.dialect.verification.wellformed import WellFormed


@dataclasses.dataclass(frozen=True)
class Problem:
    """Violation of a rule by an operation."""

    op: ir.OpView
    message: str

    def __str__(self) -> str:
        return f"'{self.op.operation.name}' op {self.message}"

    def emit(self) -> None:
        """Reports the problem to the diagnostic handlers of the context."""
        self.op.operation.location.emit_error(str(self))


def verify(module: ir.Module, form: Form | None = None, *, is_well_formed: bool = False) -> bool:
    """Checks a module, which MLIR's own verifier must have passed; returns whether it has no errors.

    Args:
      form: the form to check it against; by default the one that it claims.
      is_well_formed: whether each operation by itself is known to be valid, as when passes wrote them.
    """
    reported = problems(module, form, is_well_formed=is_well_formed)
    for problem in reported:
        problem.emit()
    return not reported


def problems(module: ir.Module, form: Form | None = None, *, is_well_formed: bool = False) -> list[Problem]:
    """Returns the problems that `verify` reports."""
    reported: list[Problem] = []

    def report(op: ir.OpView, message: str) -> None:
        reported.append(Problem(op, message))

    with module.context:
        claim = _claimed(module, report)
        if claim is PARTS:
            for part in parts_of(module):
                if form_of(part) == PARTS.name:
                    report(part.operation.opview, "is a sub-program and cannot have sub-programs itself")
                else:
                    reported += problems(part, is_well_formed=is_well_formed)
        expected = form or claim or foreign_form(module) or UNCLAIMED
        if expected.foreign:
            checker = WellFormed(module, report, is_program=False)
            if checker.check_names():
                calls_of_symbols_end(checker.symbols, report)
            return reported
        if not reported and not is_well_formed:
            checker = WellFormed(
                module, report, is_program=expected is not UNCLAIMED, has_parts=claim is PARTS
            )
            if checker.check() and expected.arrays:
                checker.check_types()
        if reported:
            return reported
        programs = _programs(module, expected)
        if claim is PARTS and not programs:
            report(module.operation.opview, "has no function @main, which runs its sub-programs")
        for program in programs:
            expected.check(program, report)
        for relations in (expected.relations, expected.proofs):
            # All of a group run, also after other reports: none may rely on another; proofs may rely
            # on relations.
            for program, relation in [] if reported else itertools.product(programs, relations):
                relation(program, report)
        for joint in expected.joint:
            if not reported:
                joint(programs, report)
    return _unique(reported) if len(programs) > 1 else reported


def _unique(reported: list[Problem]) -> list[Problem]:
    """Returns each problem once: a problem of the module itself is found in every program."""
    seen: dict[str, list[ir.OpView]] = {}
    unique: list[Problem] = []
    for problem in reported:
        ops = seen.setdefault(problem.message, [])
        if problem.op not in ops:
            ops.append(problem.op)
            unique.append(problem)
    return unique


def _programs(module: ir.Module, form: Form) -> list[ProgramView]:
    """Returns the functions that are the program, or the shares of hosts in it."""
    if form.hosts:
        return read_hosts(module)
    program = read_program(module)
    return [] if program is None else [program]


def _claimed(module: ir.Module, report: Report) -> Form | None:
    name = form_of(module)
    if FORM in module.operation.attributes and name not in FORMS:
        form_names = ", ".join(f'"{form}"' for form in FORMS)
        claim = attribute_of(module.operation, FORM) or "a location"
        report(module.operation.opview, f"expected `{FORM}` to be one of {form_names}, got {claim}")
    return FORMS.get(name or "")

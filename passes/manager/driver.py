"""Driver of passes over a module, with the diagnostics that they report."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from jaxlib.mlir import ir

from pathways.dialect import FORMS, form_of, problems, run_mlir_passes, set_form, verify
from pathways.dialect.attributes.names import MAIN
from pathways.dialect.operations.operation import counted, is_public, is_text, symbol_name
from pathways.dialect.verification.forms import working_modules
from pathways.passes.manager.base import Pass, PassFailure, fail, listen
from pathways.passes.manager.text import Builtin, Item, item_name

Hook = Callable[[Item, ir.Module], None]


@dataclasses.dataclass(frozen=True)
class Position:
    """A place in a source file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclasses.dataclass(frozen=True)
class Diagnostic:
    """Report of MLIR, the verifier or a pass."""

    severity: str
    """`error`, `warning`, `remark` or `note`."""
    message: str
    position: Position | None
    """Place in a source file; None when the IR does not state it."""
    notes: tuple[Diagnostic, ...] = ()

    def __str__(self) -> str:
        return f"{self.position or '<unknown>:0'}: {self.severity}: {self.message}"


def position_of(location: ir.Location) -> Position | None:
    """Returns the first file position of a location, innermost call first."""
    match location:
        case ir.FileLineColLoc():
            return Position(_file_of(location), location.start_line, location.start_col)
        case ir.NameLoc():
            return position_of(location.child_loc)
        case ir.CallSiteLoc():
            return position_of(location.callee) or position_of(location.caller)
        case ir.FusedLoc():
            return next(filter(None, map(position_of, location.locations)), None)
    return None


def _file_of(location: ir.FileLineColLoc) -> str:
    """Returns the file of a position, as printed where it is not UTF-8, which makes the bindings abort."""
    written = str(location)
    if is_text(written.encode()):
        return location.filename
    return written.removeprefix('loc("').rpartition('":')[0]


class Diagnostics:
    """Collector of the diagnostics of a context while it is entered.

    Args:
      context: the context whose diagnostics to collect.
      on_emit: called with each one as it comes.
      forward: also pass each one to the handlers attached before.

    Example:
      ```python
      with Diagnostics(module.context) as seen:
          run_passes(module, items)
      ```
    """

    def __init__(
        self,
        context: ir.Context,
        on_emit: Callable[[Diagnostic], None] | None = None,
        *,
        forward: bool = False,
    ) -> None:
        self.all: list[Diagnostic] = []
        self._context = context
        self._on_emit = on_emit
        self._forward = forward
        self._raised: list[BaseException] = []

    @property
    def errors(self) -> list[Diagnostic]:
        """The errors among them, in the order in which they came."""
        return [d for d in self.all if d.severity == "error"]

    def __enter__(self) -> Self:
        # Otherwise errors would travel in exceptions, past the handlers.
        self._captured = self._context.emit_error_diagnostics
        self._context.emit_error_diagnostics = True
        self._handler = self._context.attach_diagnostic_handler(self._collect)
        self._ignore = listen(self._context, self._collect_remark)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ignore()
        self._handler.detach()
        # The handler holds this object, out of sight of Python's garbage collector.
        del self._handler, self._ignore
        self._context.emit_error_diagnostics = self._captured
        if self._raised:
            raise self._raised.pop() from None

    def _collect(self, diagnostic: ir.Diagnostic) -> bool:
        try:
            return self._add(_copy(diagnostic))
        except BaseException as error:
            # MLIR prints an exception of a handler, such as a KeyboardInterrupt, and continues.
            self._raised.append(error)
            return True

    def _collect_remark(self, location: ir.Location, message: str) -> bool:
        return self._add(Diagnostic("remark", message, position_of(location)))

    def _add(self, diagnostic: Diagnostic) -> bool:
        self.all.append(diagnostic)
        if self._on_emit is not None:
            self._on_emit(diagnostic)
        return not self._forward


def _copy(diagnostic: ir.Diagnostic) -> Diagnostic:
    """Copies a diagnostic of MLIR, which lives no longer than the call of its handler."""
    position = None
    try:
        position = position_of(diagnostic.location)
        message = diagnostic.message
    except (RuntimeError, UnicodeDecodeError):
        # The bindings cannot convert messages that quote input that is not UTF-8.
        message = "the input is not UTF-8 text"
    return Diagnostic(
        diagnostic.severity.name.lower(), message, position, tuple(_copy(note) for note in diagnostic.notes)
    )


def run_passes(
    module: ir.Module,
    items: Sequence[Item],
    *,
    verify_each: bool = True,
    before_each: Hook | None = None,
    after_each: Hook | None = None,
) -> None:
    """Runs passes over a module in place, and verifies it first and after each.

    A pass runs if the module is in one of its input forms: the one that the module claims, or, when it
    claims none, any that it turns out to be in. Then the module claims the output form of the pass. On a
    program of sub-programs a pass runs on each of these.

    Args:
      module: the module; its context must come from `pathways.dialect.make_context`.
      items: the passes, in order.
      verify_each: False checks claims alone, and after passes that are always verified; for callers that know
        the input to be well formed.
      before_each: called right before each pass.
      after_each: called right after each pass that succeeded, before the module is verified again.

    Raises:
      PassFailure: after an error was emitted to the handlers of the context; the message is the error's.
    """
    with module.context, _without_collection(), Diagnostics(module.context, forward=True) as seen:
        if verify_each:
            _verify_mlir(module, seen)
        verified = False
        for item in items:
            if isinstance(item, Pass):
                workings = working_modules(module)
                # As a whole, since the relations between sub-programs are in none of them.
                if verify_each and not verified and workings != [module]:
                    _verify(module, seen)
                    verified = True
                for worked in workings:
                    _check_form(item, worked, seen, verify_each and not verified)
            elif verify_each and not verified:
                _verify(module, seen)
            if before_each is not None:
                before_each(item, module)
            for worked in working_modules(module):
                _run(item, worked, seen)
            if after_each is not None:
                after_each(item, module)
            if verify_each or (isinstance(item, Pass) and item.always_verified):
                _verify_mlir(module, seen)
                _verify(module, seen, is_well_formed=not verify_each)
                # A module that claims no form is checked again, as an input form of the next pass.
                verified = form_of(module) is not None
        if verify_each and not items:
            _verify(module, seen)


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Disables Python's garbage collector: passes create many objects, and next to no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _check_form(item: Pass, module: ir.Module, seen: Diagnostics, verify_it: bool) -> None:
    """Checks that a module is in a form that a pass accepts."""
    claim = form_of(module)
    if claim is not None and claim in FORMS and FORMS[claim] not in item.input_forms:
        expected = " or ".join(f"'{form.name}'" for form in item.input_forms)
        fail(module.operation, f"'{item.name}' expects the form {expected}, got '{claim}'")
    if not verify_it:
        return
    if claim is not None:
        _verify(module, seen)
        return
    # Without a claim one form that fits is enough; if none does, the problems of the first are reported.
    candidates = [problems(module, form) for form in item.input_forms]
    if all(candidates):
        for problem in candidates[0]:
            problem.emit()
        _raise_if_any(seen)


def _run(item: Item, module: ir.Module, seen: Diagnostics) -> None:
    try:
        if isinstance(item, Builtin):
            _check_for_shardy(item, module)
            run_mlir_passes(item.text, module, verify_each=False)
        else:
            item.run(module)
            if item.output_form is not None:
                set_form(module, item.output_form)
    except (PassFailure, ir.MLIRError) as failure:
        if not seen.errors:
            module.operation.location.emit_error(str(failure))
        described = failure.described if isinstance(failure, PassFailure) else ()
        raise PassFailure(seen.errors[0].message, described) from None
    except Exception as bug:
        bug.add_note(f"while running {item_name(item)}")
        raise
    _raise_if_any(seen)


def _check_for_shardy(item: Builtin, module: ir.Module) -> None:
    """Refuses modules that crash Shardy's passes: functions without a body, and no or several programs."""
    if "sdy-" not in item.text:
        return
    functions = [op for op in module.body.operations if op.operation.name == "func.func"]
    for op in functions:
        if not op.regions[0].blocks:
            fail(op, f"has no body, and {item.text} needs one")
    public = [symbol_name(op) for op in functions if is_public(op)]
    if MAIN not in public and len(public) != 1:
        fail(
            module.operation,
            f"has {counted(len(public), 'public function')}, and {item.text} needs @main or one",
        )


def _verify_mlir(module: ir.Module, seen: Diagnostics) -> None:
    try:
        module.operation.verify()
    except ir.MLIRError:
        _raise_if_any(seen)
        raise


def _verify(module: ir.Module, seen: Diagnostics, *, is_well_formed: bool = False) -> None:
    # MLIR's own verifier has passed: ours relies on its checks.
    verify(module, is_well_formed=is_well_formed)
    _raise_if_any(seen)


def _raise_if_any(seen: Diagnostics) -> None:
    if seen.errors:
        raise PassFailure(seen.errors[0].message)

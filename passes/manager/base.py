"""Base of passes: frozen dataclasses whose fields are command-line options."""

from __future__ import annotations

import dataclasses
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NoReturn

from jaxlib.mlir import ir

from pathways.dialect import Form, symbol_table
from pathways.dialect.attributes.names import MAIN
from pathways.dialect.operations.metadata import CallMetadata, MetadataError


class PassFailure(Exception):
    """Failure of a pass that gave up after it emitted errors; the message is that of the first.

    Attributes:
      described: the last errors in terms of JAX, whose users see no operations; none where MLIR emitted them.
    """

    def __init__(self, message: str, described: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.described = described


@dataclasses.dataclass(frozen=True)
class Pass(ABC):
    """A transformation or check of a whole module.

    A subclass is a frozen dataclass with a `name`; its fields, made with `option`, are its options. Its
    docstring states its work, requirements and guarantees. The driver checks the forms before
    and after it.

    Attributes:
      input_forms: the forms of the IR that the pass accepts.
      output_form: the form of its result; None when that is the form of its input.
      always_verified: whether the module is verified after it even where passes are trusted.
    """

    name: ClassVar[str]
    input_forms: ClassVar[Sequence[Form]]
    output_form: ClassVar[Form | None] = None
    always_verified: ClassVar[bool] = False

    @abstractmethod
    def run(self, module: ir.Module) -> None:
        """Runs on a module in place, with its context entered.

        Raises:
          PassFailure: after an error was emitted with `fail`.
        """


def option[T](default: T, help: str) -> T:
    """Declares an option of a pass with its default and the sentence that `--help` prints."""
    return dataclasses.field(default=default, metadata={"help": help})


def fail(op: ir.OpView | ir.Operation, message: str) -> NoReturn:
    """Emits an error at an operation, in MLIR's form, and gives up."""
    fail_each([(op, message)])


def fail_each(errors: Iterable[tuple[ir.OpView | ir.Operation, str]]) -> NoReturn:
    """Emits errors at operations, and gives up."""
    texts, described = [], []
    for op, message in errors:
        texts.append(f"'{op.operation.name}' op {message}")
        described.append(f"{_subject_of(op.operation)} {message}".lstrip())
        # A file that a message names may have a name that is not UTF-8, which the bindings reject.
        op.operation.location.emit_error(texts[-1].encode(errors="replace").decode())
    raise PassFailure("\n".join(texts), described)


def _subject_of(op: ir.Operation) -> str:
    """Returns the name by which users of JAX know an operation; empty for the program itself."""
    match op.name:
        case "builtin.module":
            return ""
        case "func.func":
            name = ir.StringAttr(op.attributes["sym_name"]).value
            return "" if name == MAIN else f"function '{name}'"
        case "func.return":
            return "the return statement"
        case "func.call":
            try:
                call = CallMetadata.read(op)
            except MetadataError:
                call = CallMetadata()
            if call.loop is not None:
                return f"pw.accumulate of '{call.loop}'"
            return f"function '{call.name or op.attributes['callee'].value}'"
        case "pw.loop":
            is_of_jax = "sequential" in op.attributes
            return "the loop" if is_of_jax else f"pw.accumulate of '{op.attributes['sym_name'].value}'"
        case "pw.split" | "pw.carry" | "pw.next" | "pw.reduce":
            return f"pw.accumulate of '{op.attributes['loop'].value}'"
        case "pw.launch":
            return f"function '{op.attributes['callee'].value}'"
    return f"operation '{op.name}'"


Listener = Callable[[ir.Location, str], bool]
"""Callback for a remark; returns True to keep it from the listeners around it."""

_listeners: weakref.WeakKeyDictionary[ir.Context, list[Listener]] = weakref.WeakKeyDictionary()
"""The listeners to the remarks of a context, innermost last.

The bindings emit errors as diagnostics, but send remarks to an engine that writes files.
"""


def listen(context: ir.Context, listener: Listener) -> Callable[[], None]:
    """Adds a listener to the remarks of a context; returns a function that removes it."""
    listeners = _listeners.setdefault(context, [])
    listeners.append(listener)
    return lambda: listeners.remove(listener)


def remark(op: ir.OpView | ir.Operation, message: str) -> None:
    """Emits a remark at an operation."""
    for listener in reversed(_listeners.get(op.operation.context, ())):
        if listener(op.operation.location, f"'{op.operation.name}' op {message}"):
            return


def main_function(module: ir.Module) -> ir.OpView:
    """Returns the function `@main` of a program.

    Raises:
      PassFailure: when there is none, or it has no body.
    """
    main = symbol_table(module).get(MAIN)
    if main is None or main.operation.name != "func.func":
        fail(module.operation, "has no function @main, the program")
    if not main.regions[0].blocks:
        fail(main, "has no body")
    return main


def options_of(pass_type: type[Pass]) -> dict[str, dataclasses.Field[Any]]:
    """Returns the options of a pass by name."""
    return {field.name: field for field in dataclasses.fields(pass_type)}

"""What a pass is: a frozen dataclass whose fields are its command-line options."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from jaxlib.mlir import ir


class PassFailure(Exception):
    """A pass gave up after it emitted an error; the message is that error's."""


@dataclasses.dataclass(frozen=True)
class Pass(ABC):
    """A transformation or check of a whole module.

    A subclass is a frozen dataclass with a `name`; its fields, made with `option`, are its options. Its
    docstring says what the pass does, what it requires and what it guarantees.
    """

    name: ClassVar[str]

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
    text = f"'{op.operation.name}' op {message}"
    op.operation.location.emit_error(text)
    raise PassFailure(text)


remark_listeners: list[Callable[[ir.Location, str], bool]] = []
"""Who hears of remarks, innermost last; one that returns True keeps a remark from those around it.

The bindings emit errors as diagnostics, but hand remarks to an engine that writes files.
"""


def remark(op: ir.OpView | ir.Operation, message: str) -> None:
    """Emits a remark at an operation."""
    for listener in reversed(remark_listeners):
        if listener(op.operation.location, f"'{op.operation.name}' op {message}"):
            return


def main_function(module: ir.Module) -> ir.OpView:
    """The function `@main` of a program.

    Raises:
      PassFailure: when there is none, or it has no body.
    """
    for op in module.body.operations:
        if op.operation.name == "func.func" and op.attributes["sym_name"].value == "main":
            if not op.regions[0].blocks:
                fail(op, "has no body")
            return op
    fail(module.operation, "has no function @main, the program")


def options_of(pass_type: type[Pass]) -> dict[str, dataclasses.Field[Any]]:
    """The options of a pass by name."""
    return {field.name: field for field in dataclasses.fields(pass_type)}

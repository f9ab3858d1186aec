"""Check that a printed module is read back unchanged."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from jaxlib.mlir import ir

from pathways.dialect import make_context
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.passes.manager.base import PassFailure
from pathways.passes.manager.driver import Diagnostics
from pathways.tools.common.source import Source, parse


def check_round_trip(module: ir.Module) -> None:
    """Prints a module in each syntax, parses that and compares.

    Raises:
      PassFailure: an error was emitted: the output cannot be parsed, or is another module.
    """
    reference = _printed(module, generic=True)
    for way, write in _WAYS.items():
        printed = Source(f"the input as {way}", write(module))
        # Names of resources are keys of a context, in which the input has taken them.
        context = make_context()
        with Diagnostics(context) as seen:
            try:
                problem = _difference(reference, _printed(parse(printed, context), generic=True))
            except (ir.MLIRError, PassFailure, ValueError) as error:
                problem = f"cannot be read back: {seen.errors[0] if seen.errors else error}"
        if problem:
            message = f"the input, printed as {way}, {problem}"
            module.operation.location.emit_error(message)
            raise PassFailure(message)


def _printed(module: ir.Module, generic: bool) -> bytes:
    return module.operation.get_asm(binary=True, enable_debug_info=True, print_generic_op_form=generic)


_WAYS: Mapping[str, Callable[[ir.Module], bytes]] = {
    "text": lambda module: _printed(module, generic=False),
    "generic text": lambda module: _printed(module, generic=True),
    "bytecode": bytecode_of,
}


def _difference(before: bytes, after: bytes) -> str:
    """Returns the difference in the generic text of the module that was read back; empty if there is none."""
    lines = itertools.zip_longest(before.splitlines(), after.splitlines(), fillvalue=b"")
    for old, new in lines:
        if old != new:
            shown = [line.decode(errors="replace").strip() for line in (old, new)]
            return f"reads back as a different module: '{shown[0]}' becomes '{shown[1]}'"
    return ""

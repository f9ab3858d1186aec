"""Process that parses and verifies for `pw-lsp`: a crash of MLIR is a diagnostic in the editor.

Requests are texts, replies results as JSON; see `runtime.resources.child_process`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from jaxlib.mlir import ir

from pathways.dialect import PwOp, argument_slices, form_of, make_context, slices_of
from pathways.passes.manager.base import PassFailure
from pathways.passes.manager.driver import Diagnostic, Diagnostics, run_passes
from pathways.runtime.resources.child_process import serve_requests
from pathways.tools.common.source import Source
from pathways.tools.common.supervisor import memory_limit

NAME = "-"
"""MLIR's name of text without a file."""

_TRAILING_LOCATION = re.compile(
    rb'(?<! =) loc\((?:#loc\d*|unknown|"(?:[^"\\\n]|\\.)*"(?:\(#loc\d*\)|:\d+:\d+)?)\)(?=$|[,)])',
    re.MULTILINE,
)


def main() -> None:
    """Replies to the server."""
    serve_requests(lambda text: json.dumps(analyse(text)).encode(), memory_limit())


def analyse(text: bytes) -> dict[str, Any]:
    """Returns the errors in a text, and its values; pieces between lines `// -----` stand alone.

    Returns:
      `diagnostics`, each with `severity`, `message`, `line` and `column` (in bytes; from 1) or None, and
      `notes`. `results` and `arguments`: each value, by the line of its operation or function.
    """
    diagnostics: list[dict[str, Any]] = []
    values: dict[str, dict[int, list[str]]] = {"results": {}, "arguments": {}}
    for piece in Source(NAME, text).chunks():
        context = make_context()
        with Diagnostics(context) as seen:
            module = _parsed(piece, context)
        diagnostics += map(_as_json, seen.all)
        if module is not None and not seen.errors:
            for kind, line, texts in _values(module):
                values[kind].setdefault(line, []).extend(texts)
    return {"diagnostics": diagnostics, **values}


def _parsed(piece: Source, context: ir.Context) -> ir.Module | None:
    # Locations in the text name other files; blanking them out keeps all columns.
    text = _TRAILING_LOCATION.sub(lambda match: b" " * len(match.group()), piece.data)
    try:
        module = ir.Module.parse(b"\n" * (piece.first_line - 1) + text, context)
        run_passes(module, [])
    except (ir.MLIRError, PassFailure):
        return None
    return module


def _as_json(diagnostic: Diagnostic) -> dict[str, Any]:
    position = diagnostic.position if diagnostic.position and diagnostic.position.file == NAME else None
    return {
        "severity": diagnostic.severity,
        "message": diagnostic.message,
        "line": position and position.line,
        "column": position and position.column,
        # MLIR adds this note by itself to every error of its verifier; the editor shows the operation.
        "notes": [
            _as_json(note)
            for note in diagnostic.notes
            if not note.message.startswith("see current operation: ")
        ],
    }


def _values(module: ir.Module) -> Iterator[tuple[str, int, list[str]]]:
    """Yields the values of a valid module: the kind of their owner, its line, and a text for each."""
    form = form_of(module)
    suffix = f"  \nmodule in the form `{form}`" if form else ""
    for op in _in_order(module.operation.opview):
        location = op.operation.location
        if not isinstance(location, ir.FileLineColLoc):
            continue
        if op.operation.name == "func.func" and op.regions[0].blocks:
            slices = argument_slices(op)
            types = [argument.type for argument in op.regions[0].blocks[0].arguments]
            yield (
                "arguments",
                location.start_line,
                [
                    f"{_typed(type_, on)}  \nargument #{n} of `@{op.sym_name.value}`{suffix}"
                    for n, (type_, on) in enumerate(zip(types, slices, strict=True))
                ],
            )
        elif len(op.results):
            source = f"  \n{_origin(op)}{suffix}"
            yield (
                "results",
                location.start_line,
                [f"{_typed(v.type, slices_of(v))}{source}" for v in op.results],
            )


def _in_order(op: ir.OpView) -> Iterator[ir.OpView]:
    """Yields all operations inside of one, as they are printed."""
    waiting = [op]
    while waiting:
        op = waiting.pop()
        yield op
        inner = [i for region in op.regions for block in region.blocks for i in block.operations]
        waiting += reversed(inner)


def _typed(type_: ir.Type, slices: tuple[str, ...] | None) -> str:
    place = f" on {', '.join(f'`@{name}`' for name in slices)}" if slices else ""
    return f"`{type_}`{place}"


def _origin(op: ir.OpView) -> str:
    """Returns the operation that produces a value, and its position in the program."""
    text = f"result of `{op.operation.name}`"
    if not isinstance(op, PwOp):
        return text
    fields: Mapping[str, Any] = op.fields()
    attributes = {name: getattr(op, name) for name in _POSITION if name in fields}
    words = [_POSITION[name].format(value) for name, value in attributes.items() if value is not None]
    return ", ".join([text, *words])


_POSITION = {
    "callee": "of `@{}`",
    "order": "at position {} of its slice",
    "microbatch": "microbatch {}",
    "loop": "of loop `@{}`",
    "channel": "over `@{}`",
}


if __name__ == "__main__":
    main()

"""Language server of `pw-lsp`: it answers from an index of names, and from a parse in another process."""

from __future__ import annotations

import asyncio
import bisect
import dataclasses
import functools
import os
import re
from collections.abc import Callable
from importlib import metadata
from typing import Any

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer

from pathways.dialect import OPERATIONS
from pathways.tools.lsp.client import Analyst
from pathways.tools.lsp.help import attribute_help, operation_help, pass_help
from pathways.tools.lsp.index import Definition, Index, Token

_PAUSE = 0.1
"""Time without typing after which a text is parsed, in seconds."""

_SEVERITIES = {
    "error": lsp.DiagnosticSeverity.Error,
    "warning": lsp.DiagnosticSeverity.Warning,
    "remark": lsp.DiagnosticSeverity.Information,
    "note": lsp.DiagnosticSeverity.Hint,
}
_SYMBOL_KINDS = {
    "module": lsp.SymbolKind.Module,
    "func.func": lsp.SymbolKind.Function,
    "pw.channel": lsp.SymbolKind.Event,
    "pw.constant": lsp.SymbolKind.Constant,
    "pw.loop": lsp.SymbolKind.Array,
}
_PASS = re.compile(r"pw-[a-z]+(?:-[a-z]+)*")


def serve(timeout: float) -> int:
    """Serves one editor over standard input and output until it disconnects.

    Args:
      timeout: the time limit of a parse, in seconds.
    """
    server = LanguageServer("pw-lsp", metadata.version("pathways-mlir"))
    _Features(server, timeout).register()
    # The server closes them when it ends, and no other output may be among its replies.
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    server.start_io(requests, answers)
    return 0


@dataclasses.dataclass
class _Document:
    """Open text.

    Attributes:
      text: its current contents.
      values: the values in it, from the last parse; empty until then.
    """

    text: str
    values: dict[str, Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def index(self) -> Index:
        """The index of its names, which is computed at the first request, not at every key."""
        return Index(self.text)


class _Features:
    """Requests of the editor that the server answers.

    Args:
      timeout: the time limit of a parse, in seconds.
    """

    def __init__(self, server: LanguageServer, timeout: float) -> None:
        self._server = server
        self._analyst = Analyst(timeout)
        self._documents: dict[str, _Document] = {}
        self._checks: set[asyncio.Task[None]] = set()

    def register(self) -> None:
        """Registers the requests with the server."""
        answers: dict[str, Callable[..., Any]] = {
            lsp.TEXT_DOCUMENT_DID_OPEN: self.changed,
            lsp.TEXT_DOCUMENT_DID_CHANGE: self.changed,
            lsp.TEXT_DOCUMENT_DID_CLOSE: self.closed,
            lsp.TEXT_DOCUMENT_HOVER: self.hover,
            lsp.TEXT_DOCUMENT_DEFINITION: self.definition,
            lsp.TEXT_DOCUMENT_REFERENCES: self.references,
            lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL: self.symbols,
            lsp.SHUTDOWN: self.shutdown,
        }
        for method, answer in answers.items():
            # pygls sets attributes on it, which a method does not allow.
            self._server.feature(method)(functools.partial(answer))

    async def changed(self, params: lsp.DidOpenTextDocumentParams | lsp.DidChangeTextDocumentParams) -> None:
        """Stores a changed text, and parses it as soon as typing stops."""
        uri = params.text_document.uri
        document = self._documents[uri] = _Document(self._server.workspace.get_text_document(uri).source)
        check = asyncio.create_task(self._check(uri, document, params.text_document.version))
        self._checks.add(check)
        check.add_done_callback(self._checks.discard)

    async def closed(self, params: lsp.DidCloseTextDocumentParams) -> None:
        """Removes the diagnostics of a text."""
        self._documents.pop(params.text_document.uri, None)
        self._publish(params.text_document.uri, None, [])

    async def shutdown(self, _params: None) -> None:
        """Terminates the process that parses."""
        self._documents.clear()
        await self._analyst.close()

    async def _check(self, uri: str, document: _Document, version: int | None) -> None:
        await asyncio.sleep(_PAUSE)
        # Another task checks text that was typed meanwhile.
        async with self._analyst.lock:
            if self._documents.get(uri) is not document:
                return
            analysis = await self._analyst.analyse(document.text)
        if self._documents.get(uri) is not document:
            return
        document.values = analysis
        shown = [self._diagnostic(uri, document, entry) for entry in analysis["diagnostics"]]
        self._publish(uri, version, shown)

    def _publish(self, uri: str, version: int | None, diagnostics: list[lsp.Diagnostic]) -> None:
        self._server.text_document_publish_diagnostics(
            lsp.PublishDiagnosticsParams(uri=uri, version=version, diagnostics=diagnostics)
        )

    def _diagnostic(self, uri: str, document: _Document, entry: dict[str, Any]) -> lsp.Diagnostic:
        placed = [note for note in entry["notes"] if note["line"] is not None]
        elsewhere = [note["message"] for note in entry["notes"] if note["line"] is None]
        return lsp.Diagnostic(
            range=self._range_of(document, entry),
            message="\n".join([entry["message"], *elsewhere]),
            severity=_SEVERITIES[entry["severity"]],
            source="pw",
            related_information=[
                lsp.DiagnosticRelatedInformation(
                    lsp.Location(uri, self._range_of(document, note)), note["message"]
                )
                for note in placed
            ],
        )

    def _range_of(self, document: _Document, entry: dict[str, Any]) -> lsp.Range:
        """Returns the word at a position, with bytes as columns; the first line for no position."""
        lines = document.index.lines
        line = min(max((entry["line"] or 1) - 1, 0), len(lines) - 1)
        before = lines[line].encode(errors="replace")[: max((entry["column"] or 1) - 1, 0)]
        column = len(before.decode(errors="ignore"))
        words = [t for t in document.index.tokens(line) if t.start <= column < t.end]
        return self._range(document, line, column, words[0].end if words else column + 1)

    def _range(self, document: _Document, line: int, start: int, end: int) -> lsp.Range:
        units = self._server.workspace.position_codec.client_num_units
        text = document.index.lines[line].rstrip("\r")
        return lsp.Range(lsp.Position(line, units(text[:start])), lsp.Position(line, units(text[:end])))

    def _place(self, uri: str, document: _Document, token: Token) -> lsp.Location:
        return lsp.Location(uri, self._range(document, token.line, token.start, token.end))

    def _at(self, params: Any) -> tuple[_Document, int, int] | None:
        """Returns the text of a request, and the line and column in characters of its position."""
        document = self._documents.get(params.text_document.uri)
        line = params.position.line
        if document is None or not 0 <= line < len(document.index.lines):
            return None
        units = self._server.workspace.position_codec.client_num_units
        return document, line, column_of(document.index.lines[line], params.position.character, units)

    def hover(self, params: lsp.HoverParams) -> lsp.Hover | None:
        """Returns a description of the word at a position."""
        place = self._at(params)
        if place is None:
            return None
        document, line, column = place
        text = _hover_of_pass(document.index.lines[line], column)
        token = document.index.at(line, column)
        if text is None and token is not None:
            text = _hover_of(document, token)
        if text is None:
            return None
        span = None if token is None else self._range(document, line, token.start, token.end)
        return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, text), span)

    def definition(self, params: lsp.DefinitionParams) -> lsp.Location | None:
        """Returns the definition of a value or a symbol."""
        place = self._at(params)
        token = place and place[0].index.at(*place[1:])
        definition = place and token and place[0].index.definition(token)
        return (
            self._place(params.text_document.uri, place[0], definition.token)
            if place and definition
            else None
        )

    def references(self, params: lsp.ReferenceParams) -> list[lsp.Location]:
        """Returns the places of a value or a symbol."""
        place = self._at(params)
        token = place and place[0].index.at(*place[1:])
        if not place or not token:
            return []
        document = place[0]
        declared = document.index.definition(token)
        return [
            self._place(params.text_document.uri, document, other)
            for other in document.index.references(token)
            if params.context.include_declaration or declared is None or other != declared.token
        ]

    def symbols(self, params: lsp.DocumentSymbolParams) -> list[lsp.DocumentSymbol]:
        """Returns the symbols of a text: functions, slices, channels, meshes."""
        document = self._documents.get(params.text_document.uri)
        if document is None:
            return []
        return [
            lsp.DocumentSymbol(
                name=definition.name,
                detail=definition.keyword,
                kind=_SYMBOL_KINDS.get(definition.keyword, lsp.SymbolKind.Object),
                range=(
                    span := self._range(
                        document, definition.token.line, definition.token.start, definition.token.end
                    )
                ),
                selection_range=span,
            )
            for definition in document.index.definitions
            if definition.keyword
        ]


def column_of(line: str, character: int, units: Callable[[str], int]) -> int:
    """Returns the column, in characters, of a position in a line.

    Args:
      character: the position, in units of the editor.
      units: returns the number of these units of a text.
    """
    return bisect.bisect_left(range(len(line)), character, key=lambda n: units(line[:n]))


def _hover_of_pass(line: str, column: int) -> str | None:
    """Returns the documentation of a pass, wherever it is named: in a pipeline, a flag or a comment."""
    for name in _PASS.finditer(line):
        if name.start() <= column <= name.end():
            return pass_help(name.group())
    return None


def _hover_of(document: _Document, token: Token) -> str | None:
    index = document.index
    name = token.text.strip('"')
    if name in OPERATIONS:
        return operation_help(name)
    definition = index.definition(token)
    if definition is not None and definition.keyword:
        return f"```mlir\n{index.lines[definition.token.line].strip()}\n```"
    if definition is not None:
        return _hover_of_value(document, token, definition)
    for op in (t.text.strip('"') for t in index.tokens(token.line)):
        if op in OPERATIONS:
            return attribute_help(OPERATIONS[op], name)
    return None


def _hover_of_value(document: _Document, token: Token, definition: Definition) -> str:
    """Returns type, slices and position of a value, or the line that defines it without a parse."""
    kind = "arguments" if definition.is_argument else "results"
    values = document.values.get(kind, {}).get(str(definition.owner + 1), [])
    offset = int(token.text.partition("#")[2] or 0)
    if definition.number is not None and 0 <= definition.number + offset < len(values):
        return values[definition.number + offset]
    return f"```mlir\n{document.index.lines[definition.token.line].strip()}\n```"

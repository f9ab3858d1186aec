"""Pipelines as text, in MLIR's syntax: `builtin.module(pw-import,cse,pw-schedule{policy=program})`.

Passes named `pw-*` and plugins become `Pass` instances; anything else belongs to MLIR, is kept as text
and checked by MLIR's own parser.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

from pathways.dialect import make_context
from pathways.dialect.spelling import did_you_mean
from pathways.passes.manager import registry
from pathways.passes.manager.base import Pass, options_of


class PipelineError(ValueError):
    """A pipeline that cannot be read.

    Attributes:
      message: the error, without the position.
      text: the whole pipeline.
      column: where in it, counted from 1.
    """

    def __init__(self, message: str, text: str, column: int) -> None:
        super().__init__(f"pipeline:1:{column}: {message}")
        self.message = message
        self.text = text
        self.column = column


@dataclasses.dataclass(frozen=True)
class Builtin:
    """A pass, pipeline or nested pipeline of MLIR's own, such as `cse` or `func.func(canonicalize)`."""

    text: str


Item = Pass | Builtin


def item_name(item: Item) -> str:
    """Returns the name of an item in listings."""
    return item.text if isinstance(item, Builtin) else item.name


def parse_pipeline(text: str, context: ir.Context | None = None) -> list[Item]:
    """Reads a pipeline: a list of passes, bare or inside `builtin.module(...)`.

    Args:
      context: where to look up MLIR's own passes; a new one when left out.

    Raises:
      PipelineError: names the mistake, its column, and the nearest name where one is misspelt.
    """
    return _PipelineParser(text, context or make_context()).pipeline()


def pipeline_text(items: Iterable[Item]) -> str:
    """Returns the text that `parse_pipeline` reads back as these items, without options at their default."""
    return f"builtin.module({','.join(map(item_text, items))})"


def item_text(item: Item) -> str:
    """Returns one item of a pipeline, as `pipeline_text` writes it."""
    if isinstance(item, Builtin):
        return item.text
    options = [
        f"{field.name.replace('_', '-')}={_value_text(getattr(item, field.name))}"
        for field in options_of(type(item)).values()
        if getattr(item, field.name) != field.default
    ]
    return item.name + ("{" + " ".join(options) + "}" if options else "")


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    if re.fullmatch(r"[^\s,'\"{}()]+", text):
        return text
    return f"'{text}'" if "'" not in text else f'"{text}"'


_DEEPEST = 100
"""MLIR's own parser recurses, and a stack is finite."""


class _PipelineParser:
    def __init__(self, text: str, context: ir.Context) -> None:
        self.text = text
        self.context = context
        self.position = 0

    def fail(self, message: str, position: int | None = None) -> NoReturn:
        raise PipelineError(message, self.text, (self.position if position is None else position) + 1)

    def match(self, pattern: str) -> str:
        """Consumes a match at the current position, and white space after it."""
        token = re.compile(pattern).match(self.text, self.position)
        if not token or not token.group():
            return ""
        self.position = token.end()
        while self.position < len(self.text) and self.text[self.position].isspace():
            self.position += 1
        return token.group()

    def pipeline(self) -> list[Item]:
        for position, character in enumerate(self.text):
            # Bytes of the command line that are not UTF-8 arrive as lone surrogates, which bindings cannot
            # pass on.
            if "\ud800" <= character <= "\udfff":
                self.fail("expected text, got bytes that are not", position)
        self.match(r"\s+")
        if self.position == len(self.text):
            return []
        opening = self.position
        wrapped = self.match(r"builtin\.module\s*\(") != ""
        items: list[Item] = []
        if not (wrapped and self.match(r"\)")):
            items.append(self.item())
            while self.match(","):
                items.append(self.item())
            if wrapped and not self.match(r"\)"):
                if self.position == len(self.text):
                    self.fail("'(' is never closed", self.text.index("(", opening))
                self.fail(f"expected ',' or ')', got '{self.text[self.position]}'")
        if self.position < len(self.text):
            self.fail(f"expected the end of the pipeline, got '{self.text[self.position]}'")
        return items

    def item(self) -> Item:
        start = self.position
        name = self.match(r"[^\s,(){}]+")
        if not name:
            got = f"'{self.text[start]}'" if start < len(self.text) else "the end of the pipeline"
            self.fail(f"expected the name of a pass, got {got}")
        inside = self.position + 1
        bracket = self.text[self.position : self.position + 1]
        if bracket and bracket in "({":
            self.skip_brackets()
        end = len(self.text[: self.position].rstrip())
        if not name.startswith("pw-") and name not in registry.PLUGINS:
            return self.builtin(self.text[start:end], start)
        if bracket == "(":
            self.fail(
                f"'{name}' is a pass and contains no others; its options follow its name in braces",
                inside - 1,
            )
        if name not in registry.names():
            self.fail(f"no pass is named '{name}'{did_you_mean(name, _all_names())}", start)
        return self.own_pass(name, inside, end - 1 if bracket == "{" else inside)

    def skip_brackets(self) -> None:
        """Moves past the bracket that closes the one here; quoted text holds no brackets."""
        closing = {"(": ")", "{": "}"}
        expected: list[tuple[str, int]] = []
        while self.position < len(self.text):
            start = self.position
            token = self.match(r"'[^']*'|\"[^\"]*\"|.") or self.match(r"\s")
            if token in closing:
                expected.append((closing[token], start))
                if len(expected) > _DEEPEST:
                    self.fail("brackets are nested too deeply", start)
            elif token in ")}":
                if expected[-1][0] != token:
                    self.fail(f"expected '{expected[-1][0]}', got '{token}'", start)
                expected.pop()
                if not expected:
                    return
        position = expected[0][1]
        self.fail(f"'{self.text[position]}' is never closed", position)

    def builtin(self, text: str, start: int) -> Builtin:
        inner = re.search(r"[,(]\s*(pw-[\w-]+)", text)
        if inner:
            self.fail(
                f"'{inner[1]}' works on a whole module and cannot be nested inside '{text.split('(')[0]}'",
                start + inner.start(1),
            )
        for name, reason in registry.REFUSED.items():
            if re.search(rf"(?<![\w-]){name}(?![\w-])", text):
                self.fail(f"'{name}' is refused: {reason}", start + text.index(name))
        try:
            PassManager.parse(f"builtin.module({text})", self.context)
        except ValueError as error:
            # MLIR's own driver nests such passes by itself; its textual parser does not.
            if "restricted to 'func.func'" in str(error) and "(" not in text:
                return self.builtin(f"func.func({text})", start)
            self.fail_as_mlir(str(error), start)
        return Builtin(text)

    def fail_as_mlir(self, error: str, start: int) -> NoReturn:
        """Reports MLIR's error in one line, with its column and the nearest name."""
        lines = [line.strip() for line in error.splitlines() if line.strip()] or ["not a pipeline"]
        located = re.match(r"MLIR Textual PassPipeline Parser:1:(\d+): error: (.*)", lines[0])
        message, offset = (located[2], int(located[1]) - 1) if located else ("; ".join(lines), 0)
        unknown = re.match(r"'(.*?)' does not refer to a registered pass", message)
        if unknown:
            message = f"no pass is named '{unknown[1]}'{did_you_mean(unknown[1], _all_names())}"
        self.fail(message, start + offset)

    def own_pass(self, name: str, start: int, end: int) -> Pass:
        pass_type = registry.load(name)
        values = self.options(name, options_of(pass_type), start, end)
        try:
            return pass_type(**values)
        except ValueError as error:
            self.fail(f"'{name}': {error}", start)

    def options(
        self, name: str, fields: dict[str, dataclasses.Field[Any]], start: int, end: int
    ) -> dict[str, Any]:
        values: dict[str, Any] = {}
        # An option, and perhaps its value: quoted, in braces, or bare.
        pattern = re.compile(r"([^\s,={}'\"]+)(?:=('[^']*'|\"[^\"]*\"|\{[^{}]*\}|[^\s,'\"{}]*))?(?=[\s,]|$)")
        position = start
        while position < end:
            if self.text[position].isspace() or self.text[position] == ",":
                position += 1
                continue
            written = pattern.match(self.text[:end], position)
            if not written:
                self.fail(f"expected option=value, got '{self.text[position:end]}'", position)
            option, value = written[1], written[2]
            key = option.replace("-", "_")
            if key not in fields:
                option_names = [field.replace("_", "-") for field in fields]
                hint = did_you_mean(option, option_names) or f"; it has {', '.join(option_names) or 'none'}"
                self.fail(f"'{name}' has no option '{option}'{hint}", position)
            if key in values:
                self.fail(f"option '{option}' of '{name}' is given twice", position)
            if value and value[0] in "'\"{":
                value = value[1:-1]
            try:
                values[key] = _convert(fields[key], value)
            except ValueError as error:
                got = "none" if value is None else f"'{value}'"
                self.fail(f"option '{option}' of '{name}' must be {error}, got {got}", position)
            position = written.end()
        return values


def _convert(field: dataclasses.Field[Any], text: str | None) -> Any:
    """Returns the value of an option, of the kind of its default; a ValueError names that kind."""
    match field.default:
        case bool():
            choices = {None: True, "true": True, "1": True, "false": False, "0": False}
            if text not in choices:
                raise ValueError("true or false")
            return choices[text]
        case int():
            if text is None or not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
                raise ValueError("an integer")
            return int(text)
        case float():
            if text is None or not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", text):
                raise ValueError("a number")
            return float(text)
    if text is None:
        raise ValueError("a value")
    return text


def _all_names() -> list[str]:
    return [*registry.names(), *registry.BUILTIN_PASSES]

"""Just enough of MLIR's syntax to change a text so that much of it still parses.

The module reads text without the bindings, which might crash on mutated input.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

TENSOR = re.compile(r"tensor<[^<>\"]*>")
SYMBOL = re.compile(r"@(?:[A-Za-z_][\w$.]*|\"[^\"\n]*\")")
VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
NUMBER = re.compile(r"(?<![\w.@%#!\"-])-?\d+(?![\w.\"])")
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
FORM = re.compile(r'pw\.form = "(\w*)"')
_TOKEN = re.compile(
    r'"(?:[^"\\\n]|\\.)*"|->|[A-Za-z_][\w.$]*|\s+|[{}\[\]()<>,=]|[^"{}\[\]()<>,=\w\s-]+|.', re.DOTALL
)
_KEY = re.compile(r"[A-Za-z_][\w.$]*")
_CLOSING = {"{": "}", "[": "]", "(": ")", "<": ">"}


@dataclasses.dataclass(frozen=True)
class Attribute:
    """Attribute of a dictionary, with its position in the text; no value for a unit attribute."""

    start: int
    end: int
    key: str
    value: str | None


@dataclasses.dataclass(frozen=True)
class Dictionary:
    """Attributes between two braces; `start` is after the opening one, `end` at the closing one."""

    start: int
    end: int
    attributes: tuple[Attribute, ...]


def dictionaries(text: str) -> list[Dictionary]:
    """Returns all attribute dictionaries of a text, including nested ones."""
    tokens = list(_TOKEN.finditer(text))
    partners = _partners(tokens)
    found = []
    for number, token in enumerate(tokens):
        if token.group() == "{" and number in partners:
            attributes = _attributes(text, tokens, partners, number + 1, partners[number])
            if attributes:
                found.append(Dictionary(token.end(), tokens[partners[number]].start(), attributes))
    return found


def _partners(tokens: list[re.Match[str]]) -> dict[int, int]:
    """Returns the number of the closing bracket of each opening one that has one."""
    partners, opened = {}, list[tuple[int, str]]()
    for number, token in enumerate(tokens):
        text = token.group()
        if text in _CLOSING:
            opened.append((number, _CLOSING[text]))
        elif opened and text == opened[-1][1]:
            partners[opened.pop()[0]] = number
    return partners


def _attributes(
    text: str, tokens: list[re.Match[str]], partners: dict[int, int], first: int, last: int
) -> tuple[Attribute, ...] | None:
    """Returns the attributes between two tokens; None if the text there is no list of attributes."""
    attributes = []
    number = first
    while number < last:
        if tokens[number].group().isspace():
            number += 1
            continue
        key = tokens[number].group()
        start = tokens[number].start()
        if not _KEY.fullmatch(key):
            return None
        number = _skip_space(tokens, number + 1)
        value = None
        end = start + len(key)
        if tokens[number].group() == "=":
            value_start = number = _skip_space(tokens, number + 1)
            while number < last and tokens[number].group() != ",":
                number = partners.get(number, number) + 1
            value = text[tokens[value_start].start() : tokens[number].start()].rstrip()
            end = tokens[value_start].start() + len(value)
        attributes.append(Attribute(start, end, key, value))
        if number < last and tokens[number].group() != ",":
            return None
        number += 1
    return tuple(attributes)


def _skip_space(tokens: list[re.Match[str]], number: int) -> int:
    while number + 1 < len(tokens) and tokens[number].group().isspace():
        number += 1
    return number


@dataclasses.dataclass(frozen=True)
class Statement:
    """Operation with its regions: lines `first` to `last` of a text, both included."""

    first: int
    last: int
    depth: int


def statements(lines: list[str]) -> list[Statement]:
    """Returns the operations of a text that is indented as by MLIR's printer, including those in regions."""
    found: list[Statement] = []
    opened: list[int] = []
    depth = 0
    for number, line in enumerate(lines):
        balance = balance_of(line)
        bare = line.strip()
        if not bare or bare.startswith(("//", "^", "!", "#")):
            continue
        if bare[0] in "})" and opened:
            if balance >= 0 and bare.endswith(("{", "(")):
                continue  # `}, {` between two regions
            depth += balance
            found.append(Statement(opened.pop(), number, len(opened)))
        elif balance > 0:
            opened.append(number)
            depth += balance
        elif balance == 0:
            found.append(Statement(number, number, len(opened)))
    return sorted(found, key=lambda statement: (statement.first, statement.last))


def balance_of(line: str) -> int:
    """Returns the number of braces and parentheses that a line opens, minus those that it closes."""
    bare = STRING.sub("", line)
    return sum(bare.count(c) for c in "{(") - sum(bare.count(c) for c in "})")


@dataclasses.dataclass(frozen=True)
class Function:
    """Function with a body: its lines, and the types of the values that it computes."""

    first: int
    last: int
    values: dict[str, str]
    """Types of values, as they are written; values of unknown type are left out."""


_ARGUMENT = re.compile(r"(%[\w$.]+): ((?:!|tensor<)[^,(){}\s]*>?)")
_RESULTS = re.compile(r"^\s*(%[\w$.]+)(?::(\d+))? = ")


def functions(lines: list[str]) -> list[Function]:
    """Returns the functions of a text that have a body."""
    found = []
    for statement in statements(lines):
        if statement.last == statement.first or "func.func" not in lines[statement.first]:
            continue
        values: dict[str, str] = {}
        for line in lines[statement.first : statement.last + 1]:
            values |= dict(_ARGUMENT.findall(line)) | dict(_results(line))
        found.append(Function(statement.first, statement.last, values))
    return found


def _results(line: str) -> Iterator[tuple[str, str]]:
    """Yields the results of an operation, with their types."""
    match = _RESULTS.match(line)
    if match is None or " : " not in line:
        return
    signature = line.rpartition(" : ")[2]
    types = split_list(signature.rpartition("->")[2].strip().removeprefix("(").removesuffix(")"))
    if match[2] is None:
        yield match[1], types[-1]
        return
    for number, type_ in enumerate(types):
        yield f"{match[1]}#{number}", type_


def results(line: str) -> list[str]:
    """Returns the names of the results of an operation, without the numbers of those of one name."""
    match = _RESULTS.match(line)
    return [] if match is None else [match[1]]


def split_list(text: str) -> list[str]:
    """Returns the items between the commas of a list, outside of brackets; at least one, maybe empty."""
    items, depth, start = [], 0, 0
    for token in _TOKEN.finditer(text):
        if token.group() in _CLOSING:
            depth += 1
        elif token.group() in _CLOSING.values():
            depth -= 1
        elif token.group() == "," and depth == 0:
            items.append(text[start : token.start()].strip())
            start = token.end()
    return [*items, text[start:].strip()]


def replace(text: str, start: int, end: int, new: str) -> str:
    """Returns the text with a range replaced."""
    return text[:start] + new + text[end:]

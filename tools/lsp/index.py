"""Index of names in MLIR text: the places where values and symbols are defined and used.

A small lexer, not a parser: it also serves while a text is being written, when MLIR reports only the first
error. Lines and columns count from 0, columns in characters.
"""

from __future__ import annotations

import bisect
import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_TOKEN = re.compile(
    r'//.*|"(?:[^"\\]|\\.)*"?|%[\w$.-]+(?:#\d+)?|@(?:"(?:[^"\\]|\\.)*"|[\w$.-]+)|[#!^]?[A-Za-z_][\w$.]*|\d[\w.]*|->|\S'
)
_OPENING, _CLOSING = frozenset("({["), frozenset(")}]")
_SEPARATOR = re.compile(r"// -----[ \t\r]*$")
_VISIBILITIES = ("public", "private", "nested")


class Token(NamedTuple):
    """Word of a text.

    Attributes:
      line, start, end: its position.
    """

    line: int
    start: int
    end: int
    text: str

    @property
    def name(self) -> str:
        """The name that it refers to: `%x` for `%x#1`, `@f` for `@"f"`."""
        if self.text.startswith("%"):
            return self.text.partition("#")[0]
        return f"@{self.text[2:-1]}" if self.text.startswith('@"') else self.text


@dataclasses.dataclass(frozen=True)
class Definition:
    """Definition of a name.

    Attributes:
      token: the name, or the string that names a symbol.
      name: with `%` or `@`.
      scope: the region of the text in which it is valid.
      keyword: the operation that declares a symbol; empty for values.
      owner: the line of the operation of a result, or of the function of an argument.
      number: the number of the result or argument, None for other values.
      is_argument: whether it is an argument of a function.
    """

    token: Token
    name: str
    scope: int
    keyword: str = ""
    owner: int = 0
    number: int | None = None
    is_argument: bool = False


class Index:
    """Names of a text.

    Args:
      text: MLIR, which may be incomplete.
    """

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self._tokens: list[list[Token]] = []
        self._pieces: list[int] = []
        self._functions: list[int] = []
        self.definitions: list[Definition] = []
        self._read()
        self._read_values()
        self._read_symbols()
        self._by_name: dict[tuple[str, int], list[Definition]] = {}
        for definition in self.definitions:
            self._by_name.setdefault((definition.name, definition.scope), []).append(definition)
        self._declared = {d.token: d.name for d in self.definitions}

    def at(self, line: int, column: int) -> Token | None:
        """Returns the word at a position, or the one that ends there."""
        if not 0 <= line < len(self._tokens):
            return None
        touching = [token for token in self._tokens[line] if token.start <= column <= token.end]
        return max(touching, key=lambda token: (token.text[0] in "%@", token.start), default=None)

    def tokens(self, line: int) -> Sequence[Token]:
        """Returns the words of a line, without comments."""
        return self._tokens[line] if 0 <= line < len(self._tokens) else ()

    def definition(self, token: Token) -> Definition | None:
        """Returns the definition of a word's name: for values the last one in front of it, or the next."""
        name = self._named(token)
        places = self._by_name.get((name, self._scope(token.line, name)), [])
        here = token.line, token.start
        before = [place for place in places if (place.token.line, place.token.start) <= here]
        return before[-1] if before else next(iter(places), None)

    def references(self, token: Token) -> list[Token]:
        """Returns every word that refers to the same value or symbol."""
        definition = self.definition(token)
        name = self._named(token)
        scope = self._scope(token.line, name)
        if not name.startswith(("%", "@")):
            return []
        tokens = [
            other
            for line in range(len(self._tokens))
            if self._scope(line, name) == scope
            for other in self._tokens[line]
            if other.name == name and self.definition(other) == definition
        ]
        if definition is not None and definition.token not in tokens:
            tokens.append(definition.token)
        return sorted(tokens, key=lambda other: (other.line, other.start))

    def _named(self, token: Token) -> str:
        """Returns the name that a word refers to; a string may be the name of a symbol."""
        if not token.text.startswith('"'):
            return token.name
        return self._declared.get(token, token.text)

    def _scope(self, line: int, name: str) -> int:
        """Returns the scope of a name: of symbols between lines `// -----`, of values by function."""
        starts = self._pieces if name.startswith("@") else self._functions
        return bisect.bisect_right(starts, line)

    def _read(self) -> None:
        for number, line in enumerate(self.lines):
            tokens = [
                Token(number, word.start(), word.end(), word.group())
                for word in _TOKEN.finditer(line)
                if not word.group().startswith("//")
            ]
            self._tokens.append(tokens)
            if _SEPARATOR.match(line):
                self._pieces.append(number)
                self._functions.append(number)
            elif tokens and tokens[0].text in ("func.func", '"func.func"'):
                self._functions.append(number)

    def _read_values(self) -> None:
        brackets: list[str] = []
        header: int | None = None
        arguments = 0
        for line, tokens in enumerate(self._tokens):
            scope = self._scope(line, "%")
            if tokens and tokens[0].text == "func.func":
                brackets, header, arguments = [], line, 0
            results = dict(_results(tokens))
            for n, token in enumerate(tokens):
                after = tokens[n + 1].text if n + 1 < len(tokens) else ""
                if token in results:
                    self.definitions.append(
                        Definition(token, token.name, scope, owner=line, number=results[token])
                    )
                elif token.text.startswith("%") and after in (":", "=") and brackets[-1:] == ["("]:
                    # `(%x: type` of a function or block, or `(%x = %y` of `stablehlo.while` and the like.
                    is_argument = header is not None and len(brackets) == 1
                    owner, number = (header or 0, arguments) if is_argument else (line, None)
                    arguments += is_argument
                    self.definitions.append(
                        Definition(token, token.name, scope, "", owner, number, is_argument)
                    )
                elif token.text in _OPENING:
                    # The body of the function begins: later definitions are arguments of its blocks.
                    if token.text == "{" and not brackets and tokens[n - 1].text != "attributes":
                        header = None
                    brackets.append(token.text)
                elif token.text in _CLOSING and brackets:
                    brackets.pop()

    def _read_symbols(self) -> None:
        for line, tokens in enumerate(self._tokens):
            scope = self._scope(line, "@")
            declared = _declared(tokens)
            if declared is not None:
                self.definitions.append(Definition(declared, declared.name, scope, tokens[0].text.strip('"')))
            for name, equals, value in zip(tokens, tokens[1:], tokens[2:], strict=False):
                if (name.text, equals.text) == ("sym_name", "=") and value.text.startswith('"'):
                    keyword = tokens[0].text.strip('"')
                    self.definitions.append(Definition(value, f"@{value.text[1:-1]}", scope, keyword))


def _results(tokens: Sequence[Token]) -> Iterator[tuple[Token, int]]:
    """Yields the values that a line defines in front of its `=`, each with the number of its first result."""
    values: list[tuple[Token, int]] = []
    position, number = 0, 0
    while position < len(tokens) and tokens[position].text.startswith("%"):
        values.append((tokens[position], number))
        position += 1
        number += 1
        if [t.text for t in tokens[position : position + 1]] == [":"] and position + 1 < len(tokens):
            # `%x:2` represents two results.
            width = tokens[position + 1].text
            number += int(width) - 1 if width.isdecimal() and len(width) < 9 else 0
            position += 2
        separator = tokens[position].text if position < len(tokens) else ""
        position += 1
        if separator == "=":
            yield from values
        if separator != ",":
            return


def _declared(tokens: Sequence[Token]) -> Token | None:
    """Returns the symbol that a line in custom syntax declares: `func.func private @f`, `sdy.mesh @mesh`."""
    if len(tokens) < 2 or not re.match(r"[A-Za-z_]", tokens[0].text) or tokens[0].text.endswith("call"):
        return None
    place = 2 if tokens[1].text in _VISIBILITIES else 1
    if place < len(tokens) and tokens[place].text.startswith("@"):
        return tokens[place]
    return None

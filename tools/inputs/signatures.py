"""Arguments of a program as text: `f32[8,128]`, `{"w": bf16[8,8], "b": bf16[8]}`.

    value  = array | tuple | list | dict | literal
    array  = dtype "[" [ size { "," size } ] "]"
    tuple  = "(" [ value "," [ value { "," value } [ "," ] ] ] ")"
    list   = "[" [ value { "," value } [ "," ] ] "]"
    dict   = "{" [ string ":" value { "," string ":" value } [ "," ] ] "}"
    literal = "None" | "True" | "False" | integer | number with a fraction or an exponent | string
    dtype  = a short name of MLIR, JAX or HLO, or numpy's name; "key" is a typed PRNG key

Strings are in single or double quotes with the escapes of JSON. Reading never evaluates anything.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

DTYPES = {
    **dict.fromkeys(("bool", "i1", "pred"), "bool"),
    **{f"{prefix}{bits}": f"int{bits}" for prefix in ("i", "s", "int") for bits in (2, 4, 8, 16, 32, 64)},
    **{f"{prefix}{bits}": f"uint{bits}" for prefix in ("u", "ui", "uint") for bits in (2, 4, 8, 16, 32, 64)},
    **{f"{prefix}{bits}": f"float{bits}" for prefix in ("f", "float") for bits in (16, 32, 64)},
    **dict.fromkeys(("bf16", "bfloat16"), "bfloat16"),
    **dict.fromkeys(("c64", "complex64"), "complex64"),
    **dict.fromkeys(("c128", "complex128"), "complex128"),
    **dict.fromkeys(("f8_e4m3fn", "f8E4M3FN", "float8_e4m3fn"), "float8_e4m3fn"),
    **dict.fromkeys(("f8_e5m2", "f8E5M2", "float8_e5m2"), "float8_e5m2"),
    "key": "key",
}
"""Every accepted name of a dtype, with numpy's name for it."""

_MAX_ELEMENTS = 2**48
_DEEPEST = 64
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_SIZE = re.compile(r"[0-9]+")
_LITERALS = {"None": None, "True": True, "False": False}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", '"': '"', "'": "'"}


@dataclasses.dataclass(frozen=True)
class ArrayText:
    """Argument with a shape and dtype only.

    Attributes:
      dtype: numpy's name of its dtype, or `key` for a typed PRNG key.
    """

    dtype: str
    shape: tuple[int, ...]


class SignatureError(ValueError):
    """Text is not an argument; `column` counts characters from 1."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__(message)
        self.column = column


def parse_value(text: str) -> Any:
    """Reads one argument.

    Returns:
      An `Array`, a number, a string, True, False or None; or a tuple, list or dict of such values.

    Raises:
      SignatureError: names the column and the expected text.
    """
    return _ValueReader(text).read_all()


def parse_named(text: str) -> tuple[str, Any]:
    """Reads an argument with its name: `scale=f32[]`."""
    reader = _ValueReader(text)
    name = reader.take(_WORD)
    if not name:
        reader.fail("expected the name of an argument")
    if not reader.accept("="):
        reader.fail(f"expected '=' after '{name}'")
    return name, reader.read_all()


class _ValueReader:
    """Recursive-descent parser of arguments."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.depth = 0

    def fail(self, message: str, position: int | None = None) -> Any:
        """Raises an error, by default at the current position."""
        if position is None:
            character = self.text[self.position : self.position + 1]
            message += f", got {character!r}" if character else ", got the end"
            position = self.position
        raise SignatureError(message, position + 1)

    def skip_space(self) -> None:
        while self.text[self.position : self.position + 1] in (" ", "\t", "\n"):
            self.position += 1

    def accept(self, character: str) -> bool:
        """Skips a character, and the space before it, if it comes next; returns whether it does."""
        self.skip_space()
        if not self.text.startswith(character, self.position):
            return False
        self.position += 1
        return True

    def take(self, pattern: re.Pattern[str]) -> str:
        """Returns and skips the match of a pattern here, which may be empty."""
        self.skip_space()
        match = pattern.match(self.text, self.position)
        if not match:
            return ""
        self.position = match.end()
        return match.group()

    def read_all(self) -> Any:
        value = self.value()
        self.skip_space()
        if self.position < len(self.text):
            self.fail("expected the end of the argument")
        return value

    def value(self) -> Any:
        self.skip_space()
        start = self.position
        match self.text[start : start + 1]:
            case "(":
                return self.nested(self.read_tuple)
            case "[":
                return self.nested(self.read_list)
            case "{":
                return self.nested(self.read_dict)
            case '"' | "'":
                return self.string()
        if number := self.take(_NUMBER):
            return self.number(number, start)
        word = self.take(_WORD)
        if word in _LITERALS:
            return _LITERALS[word]
        if not word:
            self.fail("expected an argument such as f32[8,128]")
        return self.array(word, start)

    def array(self, word: str, start: int) -> ArrayText:
        if word not in DTYPES:
            from pathways.dialect.spelling import did_you_mean

            self.fail(f"unknown dtype '{word}'{did_you_mean(word, [*DTYPES, *_LITERALS])}", start)
        if not self.accept("["):
            self.fail(f"expected a shape, such as {word}[8,128], or {word}[] for a scalar")
        shape: list[int] = []
        while not self.accept("]"):
            if shape and not self.accept(","):
                self.fail("expected ',' or ']'")
            self.skip_space()
            at = self.position
            size = self.take(_SIZE)
            if not size:
                self.fail("expected a size" if shape else "expected a size or ']'")
            # The digits are counted first: Python cannot convert very many. A size of 0 does not exempt the
            # others.
            if len(size) > 18 or math.prod(max(s, 1) for s in [*shape, int(size)]) > _MAX_ELEMENTS:
                self.fail(f"an array of more than {_MAX_ELEMENTS} elements", at)
            shape.append(int(size))
        return ArrayText(DTYPES[word], tuple(shape))

    def number(self, text: str, start: int) -> int | float:
        if len(text) > 100:
            self.fail("a number of more than 100 characters", start)
        if re.fullmatch(r"-?[0-9]+", text):
            return int(text)
        value = float(text)
        return value if math.isfinite(value) else self.fail("a number that does not fit into a float", start)

    def nested(self, read: Callable[[], Any]) -> Any:
        self.depth += 1
        if self.depth > _DEEPEST:
            self.fail(f"nested more than {_DEEPEST} levels deep", self.position)
        self.position += 1
        value = read()
        self.depth -= 1
        return value

    def read_tuple(self) -> tuple[Any, ...]:
        values, comma = self.items(")")
        if len(values) == 1 and not comma:
            self.fail("expected ',': a tuple of one value is written (value,)", self.position - 1)
        return tuple(values)

    def read_list(self) -> list[Any]:
        return self.items("]")[0]

    def items(self, end: str) -> tuple[list[Any], bool]:
        """Returns the values up to a bracket, and whether a comma precedes it."""
        values: list[Any] = []
        comma = True
        while not self.accept(end):
            if not comma:
                self.fail(f"expected ',' or '{end}'")
            values.append(self.value())
            comma = self.accept(",")
        return values, comma

    def read_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        comma = True
        while not self.accept("}"):
            if not comma:
                self.fail("expected ',' or '}'")
            at = self.position
            if self.text[at : at + 1] not in ('"', "'"):
                self.fail("expected a key in quotes, or '}'")
            key = self.string()
            if key in values:
                self.fail(f"key {key!r} occurs here twice", at)
            if not self.accept(":"):
                self.fail("expected ':'")
            values[key] = self.value()
            comma = self.accept(",")
        return values

    def string(self) -> str:
        start = self.position
        quote = self.text[start]
        self.position += 1
        pieces: list[str] = []
        while True:
            character = self.text[self.position : self.position + 1]
            if not character:
                self.fail("unterminated string", start)
            self.position += 1
            if character == quote:
                return "".join(pieces)
            pieces.append(self.escape() if character == "\\" else character)

    def escape(self) -> str:
        at = self.position - 1
        character = self.text[self.position : self.position + 1]
        self.position += 1
        if character == "u":
            digits = self.text[self.position : self.position + 4]
            self.position += 4
            if not re.fullmatch(r"[0-9a-fA-F]{4}", digits):
                self.fail("expected four hexadecimal digits after \\u", at)
            return chr(int(digits, 16))
        if not character or character not in _ESCAPES:
            self.fail("unknown escape in a string", at)
        return _ESCAPES[character]

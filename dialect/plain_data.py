"""Plain data from outside, JSON and TOML above all, read as records or rejected by an error with the place.

A record is a `msgspec.Struct`; the constraints of its fields have descriptions, which messages repeat:

    Count = Annotated[int, msgspec.Meta(ge=1, description="a whole number of at least 1")]
"""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import msgspec

from pathways.dialect.attributes.names import MAX_ELEMENTS
from pathways.dialect.spelling import nearest

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1000, description="a printable string")]
Symbol = Annotated[
    str, msgspec.Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]*\Z", description="a name of letters, digits and _")
]
Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_ELEMENTS, description="a whole number of at least 1")]

_NO_HINTS: Mapping[str, str] = types.MappingProxyType({})
_MISMATCHES = (msgspec.ValidationError, UnicodeEncodeError, RecursionError)
"""Errors of msgspec: data of another type, texts with half a pair of surrogates, and deeply nested data."""

_WORD = re.compile(r"[\w-]+")
_EXPECTED = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", tuple: "a list"}


class PlainDataError(ValueError):
    """Data is not JSON, or not of its type; the message begins with the place in it."""


def decode_text(data: bytes | memoryview) -> str:
    """Returns UTF-8 text, without the mark that some editors write in front of it.

    Raises:
      PlainDataError: it is not UTF-8.
    """
    try:
        return bytes(data).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PlainDataError(f"not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}") from None


def parse_json(data: bytes | memoryview) -> Any:
    """Returns the value of a JSON text in which no key occurs twice in an object.

    Raises:
      PlainDataError: the text is not such JSON.
    """

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            raise ValueError("a key occurs twice in one object")
        return members

    def no_constant(text: str) -> Any:
        # Python's parser accepts NaN and Infinity, which JSON does not have.
        raise ValueError(f"{text} is not a number")

    try:
        return json.loads(decode_text(data), object_pairs_hook=no_duplicates, parse_constant=no_constant)
    except PlainDataError:
        raise
    except RecursionError:
        raise PlainDataError("not JSON: nested too deeply") from None
    except ValueError as error:
        raise PlainDataError(f"not JSON: {error}") from None


def read_record[T](value: Any, kind: type[T], hints: Mapping[str, str] = _NO_HINTS) -> T:
    """Returns plain data as a record.

    Args:
      hints: the message for some unknown keys, instead of the nearest known one.

    Raises:
      PlainDataError: the data is not such a record; names the entry, its value, and the expected one.
    """
    try:
        return msgspec.convert(value, kind)
    except _MISMATCHES:
        # Msgspec names neither keys of dictionaries nor the meaning of a pattern.
        raise PlainDataError(next(_problems(value, kind, "", hints))) from None


def check_fields(record: msgspec.Struct) -> None:
    """Checks the fields of a record that a caller has created, for its `__post_init__`.

    Raises:
      ValueError: a field is invalid; the message begins with its name.
    """
    for field in msgspec.structs.fields(type(record)):
        value = getattr(record, field.name)
        if (mismatch := _mismatch(value, field.type)) is not None:
            raise ValueError(f"{field.name}={value!r}: {_expected(field.type, mismatch)}")


def unknown_key(key: str, keys: Iterable[str]) -> str:
    """Returns the message about a key that is not among `keys`."""
    names = list(keys)
    near = nearest(key, names)
    hint = f"did you mean {near}?" if near else f"expected some of {', '.join(names)}"
    return f"{_key(key)}: unknown key; {hint}"


def shown(value: object) -> str:
    """Returns a value as JSON on one line, shortened."""
    try:
        text = json.dumps(value, default=str, ensure_ascii=False)
    except (RecursionError, ValueError, TypeError):
        return "..."
    text = text if text.isprintable() else json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _key(key: str) -> str:
    return key if _WORD.fullmatch(key) else shown(key)


def _mismatch(value: Any, kind: Any) -> str | None:
    """Returns why a value is not of a type; None if it is."""
    try:
        msgspec.convert(value, kind)
    except _MISMATCHES as error:
        # msgspec appends the path, which callers state in their own words.
        return str(error).partition(" - at `")[0].replace("Expected", "expected", 1)
    return None


def _problems(value: Any, kind: Any, place: str, hints: Mapping[str, str]) -> Iterator[str]:
    """Yields the problems of a value, the innermost entry first."""
    if (mismatch := _mismatch(value, kind)) is None:
        return
    yield from _inner_problems(value, _bare(kind), place, hints)
    if isinstance(value, dict) and _is_record(_bare(kind)):
        # The reason is in the message of its `__post_init__`.
        yield f"{place}: {mismatch}" if place else mismatch
    else:
        expected = _expected(kind, mismatch)
        yield f"{place} = {shown(value)}: {expected}" if place else expected


def _inner_problems(value: Any, kind: Any, place: str, hints: Mapping[str, str]) -> Iterator[str]:
    dot = f"{place}." if place else ""
    match value, typing.get_args(kind):
        case dict(), () if _is_record(kind):
            fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
            is_closed = kind.__struct_config__.forbid_unknown_fields
            for key in (key for key in value if is_closed and key not in fields):
                yield dot + (
                    f"{key}: unknown key; {hints[key]}" if key in hints else unknown_key(key, fields)
                )
            for key, field in fields.items():
                if key in value:
                    yield from _problems(value[key], field.type, f"{dot}{key}", hints)
                elif field.required:
                    yield f"{dot}{key}: missing"
        case dict(), (keys, values) if typing.get_origin(kind) is dict:
            for key, each in value.items():
                name = f"{dot}{_key(key)}"
                yield from _problems(key, keys, name, hints)
                yield from _problems(each, values, name, hints)
        # `list[of]` and `tuple[of, ...]`.
        case [*items], (of,) | (of, types.EllipsisType()):
            for n, each in enumerate(items):
                yield from _problems(each, of, f"{place}[{n}]", hints)


def _expected(kind: Any, mismatch: str) -> str:
    """Returns a description of the values of a type."""
    kind = _required(kind)
    metas = typing.get_args(kind)[1:] if typing.get_origin(kind) is typing.Annotated else ()
    descriptions = [meta.description for meta in metas if isinstance(meta, msgspec.Meta) and meta.description]
    bare = _bare(kind)
    words = "an object" if _is_record(bare) else _EXPECTED.get(typing.get_origin(bare) or bare)
    if typing.get_origin(bare) is typing.Literal:
        words = f"one of {', '.join(map(repr, typing.get_args(bare)))}"
    expected = descriptions[-1] if descriptions else words
    return f"expected {expected}" if expected else mismatch


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _required(kind: Any) -> Any:
    """Returns the one type besides None of a union, with its constraints; other types as they are."""
    choices = [choice for choice in typing.get_args(kind) if choice is not types.NoneType]
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return choices[0] if is_union and len(choices) == 1 else kind


def _bare(kind: Any) -> Any:
    """Returns a type without its constraints."""
    kind = _required(kind)
    return _bare(typing.get_args(kind)[0]) if typing.get_origin(kind) is typing.Annotated else kind

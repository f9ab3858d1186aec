"""Mutations of protobuf messages by their descriptors, also of messages and programs in their `bytes`."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from google.protobuf import descriptor

_NUMBERS = (
    *(0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 127, 128, 255, 256, 1000, 1 << 16, 1 << 20),
    *(n + offset for n in (1 << 31, 1 << 32, 1 << 53, 1 << 56, 1 << 62) for offset in (-1, 0, 1)),
    *((1 << 63) - 1, -1, -2, -8, -(1 << 31), -(1 << 63)),
)
_FLOATS = (0.0, -1.0, 1e300, float("inf"), float("nan"))
_TEXTS = ("", "x", "device", "pinned_host", "\0", "é" * 300, "%s%n", "a" * 100_000)
_MAX_SIZE = 1 << 20

INNER = {
    "SingleDeviceSharding": "xla.ifrt.SingleDeviceShardingProto",
    "HloSharding": "xla.ifrt.HloShardingProto",
    "ConcreteEvenSharding": "xla.ifrt.ConcreteEvenShardingProto",
    "ConcreteSharding": "xla.ifrt.ConcreteShardingProto",
    "OpaqueSharding": "xla.ifrt.OpaqueShardingProto",
    "XlaCompileOptions": "xla.ifrt.XlaCompileOptionsProto",
}
"""Names of the messages in the `data` of a `Serialized`, by the end of its `type_name`."""

Site = tuple[Any, Any]
"""Message and one of its fields."""


class Pool:
    """Values that fields of the seeds have: handles, shapes, texts of programs.

    Args:
      messages: the classes of messages.
      texts: returns the text of a program, for mutations of lines and words.
    """

    def __init__(self, messages: Any, texts: Callable[[bytes], str | None]) -> None:
        self.messages = messages
        self.texts = texts
        self._values: dict[str, list[Any]] = {}

    def add(self, message: Any) -> None:
        """Adds the values of a message."""
        for holder, field in sites(message):
            values = [*getattr(holder, field.name)] if field.is_repeated else [getattr(holder, field.name)]
            known = self._values.setdefault(field.full_name, [])
            for value in values:
                if field.message_type is None and len(known) < 500:
                    known.append(value)
            # Handles of all kinds share numbers.
            if field.name.endswith(("handle", "handles")):
                self._values.setdefault("handles", []).extend(values)
        for inner, _ in self.opened(message):
            self.add(inner)

    def opened(self, message: Any) -> Iterator[tuple[Any, Callable[[], None]]]:
        """Yields messages in fields of `bytes`, each with a function that writes it back."""
        for holder in [message, *_messages_in(message)]:
            if holder.DESCRIPTOR.name != "Serialized":
                continue
            name = INNER.get(holder.type_name.rpartition("::")[2])
            if name is None:
                continue
            try:
                inner = self.messages.parse(name, holder.data)
            except ValueError:
                continue

            def put_back(holder: Any = holder, inner: Any = inner) -> None:
                holder.data = inner.SerializeToString()

            yield inner, put_back

    def value(self, chance: random.Random, field: Any) -> Any:
        """Returns a value for a field: of another seed, or an extreme one."""
        known = self._values.get(field.full_name, [])
        if field.name.endswith(("handle", "handles")) and chance.random() < 0.5:
            known = self._values.get("handles", known)
        if known and chance.random() < 0.5:
            return chance.choice(known)
        kind = field.cpp_type
        if kind == descriptor.FieldDescriptor.CPPTYPE_ENUM:
            return chance.choice([*field.enum_type.values_by_number, 99, -1])
        if kind == descriptor.FieldDescriptor.CPPTYPE_BOOL:
            return chance.random() < 0.5
        if kind in (descriptor.FieldDescriptor.CPPTYPE_DOUBLE, descriptor.FieldDescriptor.CPPTYPE_FLOAT):
            return chance.choice(_FLOATS)
        if kind == descriptor.FieldDescriptor.CPPTYPE_STRING:
            if field.type == descriptor.FieldDescriptor.TYPE_BYTES:
                return chance.randbytes(chance.choice((0, 1, 8, 100)))
            return chance.choice(_TEXTS)
        low, high = _RANGES[kind]
        return min(max(chance.choice(_NUMBERS), low), high)


_RANGES = {
    descriptor.FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    descriptor.FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    descriptor.FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    descriptor.FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
}


def _messages_in(message: Any) -> Iterator[Any]:
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is None:
                continue
            inner = list(value.values())
        else:
            inner = list(value) if field.is_repeated else [value]
        for each in inner:
            yield each
            yield from _messages_in(each)


def sites(message: Any) -> Iterator[Site]:
    """Yields all fields that are set, in a message and in its nested messages."""
    for holder in [message, *_messages_in(message)]:
        for field, _ in holder.ListFields():
            if not (field.message_type is not None and field.message_type.GetOptions().map_entry):
                yield holder, field


def mutate(chance: random.Random, message: Any, pool: Pool) -> None:
    """Mutates a message in place, one to four times; half of the time in its fields of `bytes`."""
    if message.WhichOneof("request") == "compile_request" and chance.random() < 0.5:
        program = message.compile_request.program
        program.data = mutate_program(chance, program.data, pool)
        return
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 4))):
        opened = list(pool.opened(message))
        if opened and chance.random() < 0.5:
            inner, put_back = chance.choice(opened)
            _mutate_once(chance, inner, pool)
            put_back()
        else:
            _mutate_once(chance, message, pool)


def _mutate_once(chance: random.Random, message: Any, pool: Pool) -> None:
    for _ in range(5):
        holders = [message, *_messages_in(message)]
        if chance.random() < 0.15:
            holder = chance.choice(holders)
            fields = [f for f in holder.DESCRIPTOR.fields if f.number not in (0,) and not _is_map(f)]
            if fields:
                _set(chance, holder, chance.choice(fields), pool)
                return
        found = list(sites(message))
        if not found:
            continue
        holder, field = chance.choice(found)
        if field.message_type is None and field.name == "data" and holder.DESCRIPTOR.name == "Serialized":
            holder.data = mutate_program(chance, holder.data, pool)
            return
        if chance.random() < 0.2:
            holder.ClearField(field.name)
            return
        if field.is_repeated:
            _mutate_repeated(chance, holder, field, pool)
            return
        if field.message_type is None:
            _set(chance, holder, field, pool)
            return


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _set(chance: random.Random, holder: Any, field: Any, pool: Pool) -> None:
    """Sets a field, or appends to one that is repeated."""
    if field.message_type is not None:
        inner = getattr(holder, field.name)
        inner = inner.add() if field.is_repeated else inner
        inner.SetInParent()
        plain = [f for f in field.message_type.fields if f.message_type is None and not f.is_repeated]
        for each in plain:
            if chance.random() < 0.5:
                _set(chance, inner, each, pool)
    elif field.is_repeated:
        getattr(holder, field.name).extend(
            pool.value(chance, field) for _ in range(chance.choice((1, 1, 2, 8)))
        )
    else:
        try:
            setattr(holder, field.name, pool.value(chance, field))
        except ValueError:
            holder.ClearField(field.name)  # an enum that is closed


def _mutate_repeated(chance: random.Random, holder: Any, field: Any, pool: Pool) -> None:
    values = [*getattr(holder, field.name)]
    at = chance.randrange(len(values))
    match chance.randrange(6):
        case 0:
            del values[at]
        case 1:
            values.insert(at, values[at])
        case 2:
            chance.shuffle(values)
        case 3:
            values *= chance.choice((2, 3, 70))
        case _ if field.message_type is None:
            values[at] = pool.value(chance, field)
        case _:
            _mutate_once(chance, values[at], pool)
            return
    kept = (
        [type(value).FromString(value.SerializeToString()) for value in values]
        if field.message_type
        else values
    )
    holder.ClearField(field.name)
    with contextlib.suppress(ValueError):  # an enum that is closed
        getattr(holder, field.name).extend(kept[:5000])


def mutate_bytes(chance: random.Random, data: bytes) -> bytes:
    """Returns bytes with some changed, inserted, deleted, repeated or cut off."""
    mutated = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        at = chance.randrange(len(mutated) + 1)
        match chance.randrange(6):
            case 0 | 1 | 2 if at < len(mutated):
                mutated[at] = chance.choice(
                    (chance.randrange(256), mutated[at] ^ (1 << chance.randrange(8)), 0, 255)
                )
            case 3:
                mutated[at:at] = chance.randbytes(chance.choice((1, 2, 8)))
            case 4:
                del mutated[at : at + chance.choice((1, 2, 8, 100))]
            case 5:
                mutated[at:at] = mutated[at : at + chance.choice((1, 8, 100))]
    return bytes(mutated)


def mutate_program(chance: random.Random, data: bytes, pool: Pool) -> bytes:
    """Returns a program with changed bytes, or as text with changed numbers, types, names and lines."""
    if chance.random() < 0.25:
        return mutate_bytes(chance, data)
    text = pool.texts(data)
    if text is None:
        return mutate_bytes(chance, data)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        text = chance.choice(_TEXT_MUTATIONS)(chance, text)
    return text.encode(errors="replace")


_NUMBER = re.compile(r"(?<![\w%@.#\"])-?\d+(?![\w.])")
_DIMENSION = re.compile(r"(?<=[<x])\d+(?=x)")
_ELEMENT = re.compile(r"(?<=[<x])(?:[su]?i\d+|ui\d+|f\d+\w*|bf16|complex<f\d+>)(?=[>,])")
_VALUE = re.compile(r"%\w+(?:#\d+)?")
_ELEMENTS = (
    *("i1", "i2", "i4", "i8", "i16", "i32", "i64", "ui4", "ui8", "ui32", "f16", "bf16", "f32", "f64"),
    *("complex<f32>", "complex<f64>", "f8E4M3FN", "f8E8M0FNU", "f4E2M1FN", "i128", "index", "f80"),
)


def _replace_one(
    chance: random.Random, text: str, pattern: re.Pattern[str], new: Callable[[str], str]
) -> str:
    found = list(pattern.finditer(text))
    if not found:
        return text
    match = chance.choice(found)
    return text[: match.start()] + new(match[0]) + text[match.end() :]


def _change_number(chance: random.Random, text: str) -> str:
    return _replace_one(
        chance,
        text,
        _NUMBER,
        lambda old: str(chance.choice((*_NUMBERS, int(old) + 1, int(old) - 1, -int(old)))),
    )


def _change_dimension(chance: random.Random, text: str) -> str:
    """Changes a size, in one occurrence of a type or in all."""
    found = sorted(set(_DIMENSION.findall(text)))
    if not found:
        return text
    old, new = chance.choice(found), str(chance.choice((0, 1, 2, 3, 5, 16, 1000, 1 << 20, 1 << 31, 1 << 40)))
    if chance.random() < 0.5:
        return _replace_one(chance, text, re.compile(rf"(?<=[<x]){old}(?=x)"), lambda _: new)
    return re.sub(rf"(?<=[<x]){old}(?=x)", new, text)


def _change_element(chance: random.Random, text: str) -> str:
    found = sorted(set(_ELEMENT.findall(text)))
    if not found:
        return text
    old, new = chance.choice(found), chance.choice(_ELEMENTS)
    pattern = re.compile(rf"(?<=[<x]){re.escape(old)}(?=[>,])")
    return (
        _replace_one(chance, text, pattern, lambda _: new)
        if chance.random() < 0.3
        else pattern.sub(new, text)
    )


def _change_operand(chance: random.Random, text: str) -> str:
    found = _VALUE.findall(text)
    return _replace_one(chance, text, _VALUE, lambda _: chance.choice(found)) if found else text


def _change_word(chance: random.Random, text: str) -> str:
    words = re.compile(r"[A-Za-z_]{3,}")
    found = words.findall(text)
    return _replace_one(chance, text, words, lambda _: chance.choice(found)) if found else text


def _change_lines(chance: random.Random, text: str) -> str:
    lines = text.split("\n")
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    match chance.randrange(3):
        case 0:
            del lines[at]
        case 1:
            lines.insert(other, lines[at])
        case _:
            lines[at], lines[other] = lines[other], lines[at]
    return "\n".join(lines)


def _drop_attribute(chance: random.Random, text: str) -> str:
    return _replace_one(chance, text, re.compile(r"\w[\w.]* = [^,<>{}\[\]]+, "), lambda _: "")


_TEXT_MUTATIONS = (
    *(_change_number, _change_number, _change_number, _change_dimension, _change_dimension),
    *(_change_element, _change_element, _change_operand, _change_operand, _change_word, _change_lines),
    _drop_attribute,
)


def mutate_stream(
    chance: random.Random, requests: Sequence[bytes], foreign: Sequence[bytes], pool: Pool, share: float
) -> list[tuple[bytes, bool]]:
    """Returns requests of a session, some changed, moved, left out or added; each with whether it was."""
    kind = pool.messages["xla.ifrt.proxy.IfrtRequest"]
    mutated: list[tuple[bytes, bool]] = []
    for data in requests:
        # There are few programs, but they are the most fragile requests.
        is_program = b"xla::ifrt::XlaProgram" in data
        if chance.random() >= (0.5 if is_program else share):
            mutated.append((data, False))
            continue
        match chance.randrange(12):
            case 0:
                mutated.append((mutate_bytes(chance, data), True))
            case 1:
                continue
            case 2:
                mutated += [(data, False), (data, True)]
            case 3 if mutated:
                mutated.insert(chance.randrange(len(mutated)), (data, True))
            case 4:
                mutated += [(chance.choice(foreign), True), (data, False)]
            case _:
                request = kind.FromString(data)
                mutate(chance, request, pool)
                mutated.append((request.SerializeToString()[:_MAX_SIZE], True))
    return mutated

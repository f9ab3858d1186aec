"""Mutations of files by their format: JSON, text, MLIR, archives, and bytes of any kind."""

from __future__ import annotations

import codecs
import copy
import dataclasses
import io
import json
import random
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bundle_mutations import mutated, texts
from bundle_seeds import Parts
from corpus import Seed, corpus_of
from mutations import mutate

Mutation = Callable[[random.Random, bytes], bytes]

_STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 2**31, 2**63, 10**30, 1e300, 0.5, float("nan"), float("inf")),
    *("", "x", "s0", "main", "é", "\ud800", "\x1b[31m", "1ms", "-1s", "1e999", "a" * 3000, "../x"),
    *([], {}, [[]], [None], [0, 0], {"": 0}, {"a": {"b": []}}, ["x", "x"]),
)
_WORDS = (
    *(
        "",
        "0",
        "-1",
        "1e400",
        "9" * 5000,
        "nan",
        "true",
        "null",
        "x",
        "'",
        '"',
        "[",
        "]",
        "{",
        "}",
        "=",
        ",",
        "#",
    ),
    *("\N{GREEK SMALL LETTER ALPHA}", "\0", "\x1b[31m", "None", "[" * 2000, "../x", "18446744073709551616"),
)


def mutate_json(rng: random.Random, data: bytes) -> bytes:
    """Returns JSON with some values changed, left out, repeated or renamed; seldom with changed bytes."""
    value = json.loads(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        containers = list(_containers(value))
        if not containers:
            break
        _change(rng, rng.choice(containers), containers)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode(errors="surrogatepass")
    return mutate_bytes(rng, text) if rng.random() < 0.1 else text


def _containers(value: Any) -> Iterator[Any]:
    """Yields all objects and lists that are not empty."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, (dict, list)) and each:
            yield each
            waiting += each.values() if isinstance(each, dict) else each


def _change(rng: random.Random, container: Any, containers: Sequence[Any]) -> None:
    is_dict = isinstance(container, dict)
    key: Any = rng.choice(list(container)) if is_dict else rng.randrange(len(container))
    match rng.randrange(6):
        case 0:
            del container[key]
        case 1 if is_dict:
            container[
                rng.choice([f"{key}s", "", *containers[0]]) if isinstance(containers[0], dict) else "x"
            ] = container.pop(key)
        case 1:
            container.insert(key, copy.deepcopy(container[key]))
        case 2:
            other = rng.choice(containers)
            values = list(other.values()) if isinstance(other, dict) else other
            container[key] = copy.deepcopy(rng.choice(values)) if values else None
        case _:
            container[key] = copy.deepcopy(rng.choice(_STRANGE))


def mutate_text(rng: random.Random, data: bytes) -> bytes:
    """Returns text with some words changed, left out or exchanged; seldom with changed bytes."""
    words = re.findall(r"\w+|\s+|.", data.decode(), re.DOTALL)
    for _ in range(rng.choice([1, 1, 2, 3])):
        at = rng.randrange(len(words)) if words else 0
        words[at : at + rng.choice([0, 1, 1, 1, 8])] = [rng.choice([*_WORDS, *words])]
    text = "".join(words).encode(errors="surrogatepass")
    return mutate_bytes(rng, text) if rng.random() < 0.2 else text


def mutate_mlir(rng: random.Random, data: bytes) -> bytes:
    """Returns a module with mutated operations, attributes and types; seldom with changed bytes."""
    if rng.random() < 0.1:
        return mutate_bytes(rng, data)
    seed = Seed("seed", data)
    return mutate(rng, seed, corpus_of([seed]))


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """Returns data of any kind, damaged as by an editor, a copy that was cut off, or a bad disk."""
    changed = bytearray(data)
    start = rng.randrange(len(data) + 1)
    match rng.randrange(9):
        case 0:
            return data[:start]
        case 1:
            return data[start:]
        case 2:
            return codecs.BOM_UTF8 + data
        case 3:
            return data.decode(errors="replace").encode("utf-16")
        case 4:
            return data.replace(b"\n", b"\r\n") + rng.choice([b"", b"\0", b"\xff", data])
        case 5:
            changed[start : start + rng.choice([1, 4, 64])] = rng.randbytes(rng.choice([0, 1, 4, 64]))
        case 6:
            changed[start:start] = data[start : start + 100]
        case _:
            for _ in range(rng.choice([1, 1, 2, 8])) if data else ():
                changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def mutate_archive(rng: random.Random, data: bytes) -> bytes:
    """Returns a zip archive with members changed, left out, renamed or repeated; or other bytes."""
    if rng.random() < 0.2:
        return mutate_bytes(rng, data)
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = [(info.filename, file.read(info)) for info in file.infolist()]
    at = rng.randrange(len(members))
    name, content = members[at]
    match rng.randrange(6):
        case 0:
            del members[at]
        case 1:
            members.insert(at, members[at])
        case 2:
            members[at] = (
                rng.choice([f"{name}x", "", "\x1b", "é.npy", "../x", rng.choice(members)[0]]),
                content,
            )
        case 3:
            members[at] = (name, rng.choice(members)[1])
        case _:
            mutation = mutate_json if name.endswith(".json") else mutate_bytes
            members[at] = (name, mutation(rng, content))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as file:
        for name, content in members:
            file.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


def mutate_bundle(rng: random.Random, data: bytes) -> bytes:
    """Returns a bundle with a mutated manifest, program or member, and right digests; or other bytes."""
    if rng.random() < 0.3:
        return mutate_archive(rng, data)
    with tempfile.NamedTemporaryFile() as file:
        path = Path(file.name)
        path.write_bytes(data)
        parts = Parts.read(path)
        seeds = (dataclasses.replace(parts, manifest={**parts.manifest, "digests": "right"}),)
        mutated(rng, seeds, texts(seeds)).write(path)
        return path.read_bytes()

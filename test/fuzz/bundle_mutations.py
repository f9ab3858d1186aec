"""Mutations of bundles, by the kind of member: JSON, trees, MLIR text, bytecode, arrays."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any

from bundle_seeds import Parts
from corpus import Corpus, Seed, corpus_of
from mutations import mutate

from pathways.runtime.bundle.file import PROGRAM
from pathways.runtime.bundle.program import read_artifact
from pathways.runtime.xla import pjrt

_STRANGE: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2, 3, 2**31, 2**40, 2**63, 1e3, "", "x", "s0", "main", "é", "\ud800", "key<rbg>"),
    *("float64", "bfloat16", "int4", "cuda", [], {}, [[]], [None], [0, 0], ["x", "x"], {"list": []}),
    *({"tuple": [0, 0]}, {"dict": [["a", 0]]}, {"record": [[1, 0], ["b", 1]]}, "a" * 2000),
)
_ARTIFACTS = "computations/"

Mutation = Callable[[random.Random, Parts], Parts]


def texts(seeds: tuple[Parts, ...]) -> Corpus:
    """Returns the corpus of the programs and computations of all seeds."""
    written = [Seed("program", seed.members[PROGRAM]) for seed in seeds]
    artifacts = [data for seed in seeds for name, data in seed.members.items() if name.startswith(_ARTIFACTS)]
    return corpus_of([*written, *(Seed("artifact", _text(data)) for data in artifacts)])


def mutated(rng: random.Random, seeds: tuple[Parts, ...], corpus: Corpus) -> Parts:
    """Returns a mutated seed: one to three mutations."""
    parts = rng.choice(seeds)
    ways: dict[Mutation, float] = {
        _change_json: 6,
        _swap_json: 2,
        _wrap_tree: 1,
        _swap_members: 1,
        _resize_array: 1,
        _flip_artifact: 3,
        lambda rng, parts: _change_program(rng, parts, corpus): 6,
        lambda rng, parts: _change_artifact(rng, parts, corpus): 8,
    }
    for way in rng.choices(list(ways), list(ways.values()), k=rng.choice([1, 1, 1, 2, 3])):
        # The next mutation may not apply to the result of this one.
        with contextlib.suppress(UnicodeDecodeError, RecursionError, IndexError):
            parts = way(rng, parts)
    return parts


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields each container in JSON, with each of its keys."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _change_json(rng: random.Random, parts: Parts) -> Parts:
    manifest = copy.deepcopy(parts.manifest)
    container, key = rng.choice(list(_places(manifest)))
    match rng.randrange(6):
        case 0:
            del container[key]
        case 1 if isinstance(container, list):
            container.insert(rng.randrange(len(container) + 1), copy.deepcopy(container[key]))
        case 2 if isinstance(container[key], int):
            container[key] += rng.choice([-1, 1])
        case 3 if isinstance(container, dict):
            container[rng.choice(["x", "name", "extra"])] = container[key]
        case _:
            container[key] = rng.choice(_STRANGE)
    return dataclasses.replace(parts, manifest=manifest)


def _swap_json(rng: random.Random, parts: Parts) -> Parts:
    """Puts a value, or the order of two, where it may fit: under the same key elsewhere."""
    manifest = copy.deepcopy(parts.manifest)
    places = list(_places(manifest))
    container, key = rng.choice(places)
    like = [(c, k) for c, k in places if type(k) is type(key) and (isinstance(k, int) or k == key)]
    other, other_key = rng.choice(like)
    container[key], other[other_key] = copy.deepcopy(other[other_key]), copy.deepcopy(container[key])
    return dataclasses.replace(parts, manifest=manifest)


def _wrap_tree(rng: random.Random, parts: Parts) -> Parts:
    manifest = copy.deepcopy(parts.manifest)
    trees = [(c, k) for c, k in _places(manifest) if k == "tree"]
    if not trees:
        return parts
    container, key = rng.choice(trees)
    for _ in range(rng.choice([1, 2, 63, 64, 500])):
        container[key] = {rng.choice(["list", "tuple"]): [container[key]]}
    return dataclasses.replace(parts, manifest=manifest)


def _with(parts: Parts, **members: bytes) -> Parts:
    return dataclasses.replace(parts, members={**parts.members, **members})


def _swap_members(rng: random.Random, parts: Parts) -> Parts:
    first, second = rng.choices(list(parts.members), k=2)
    return _with(parts, **{first: parts.members[second], second: parts.members[first]})


def _resize_array(rng: random.Random, parts: Parts) -> Parts:
    name = rng.choice(list(parts.members))
    data = parts.members[name]
    return _with(parts, **{name: rng.choice([data[:-1], data + b"\0", b"", data * 2])})


def _artifact(rng: random.Random, parts: Parts) -> str:
    return rng.choice([name for name in parts.members if name.startswith(_ARTIFACTS)])


def _flip_artifact(rng: random.Random, parts: Parts) -> Parts:
    name = _artifact(rng, parts)
    changed = bytearray(parts.members[name])
    for _ in range(rng.choice([1, 1, 2, 4])):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return _with(parts, **{name: bytes(changed)})


def _change_program(rng: random.Random, parts: Parts, corpus: Corpus) -> Parts:
    return _with(parts, **{PROGRAM: mutate(rng, Seed(PROGRAM, parts.members[PROGRAM]), corpus)})


def _change_artifact(rng: random.Random, parts: Parts, corpus: Corpus) -> Parts:
    """Mutates the text of a computation, until it is one that can be written as an artifact."""
    name = _artifact(rng, parts)
    text = _text(parts.members[name])
    for _ in range(10):
        changed = mutate(rng, Seed(name, text), corpus)
        try:
            return _with(parts, **{name: pjrt.portable_artifact(changed)})
        except Exception:  # The serialiser may raise anything.
            continue
    return parts


def _text(artifact: bytes) -> bytes:
    try:
        return f"{read_artifact(artifact)}\n".encode()
    except Exception:  # It was mutated before.
        return b"module {}\n"

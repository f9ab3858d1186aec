"""All mutations with their weights, and mutated seeds."""

from __future__ import annotations

import random
from collections.abc import Callable

import mutate_lines as lines
import mutate_words as words
from corpus import Corpus, Seed

Mutation = Callable[[random.Random, str, Corpus], str | None]

MUTATIONS: dict[Mutation, float] = {
    words.change_value: 10,
    words.drop_attribute: 4,
    words.add_attribute: 4,
    words.rename_key: 1,
    words.swap_values: 1,
    words.change_form: 2,
    words.change_symbol: 4,
    words.retype_everywhere: 4,
    words.retype_line: 1.5,
    words.change_mesh: 2,
    words.change_sharding: 3,
    words.change_number: 2,
    words.change_operation_name: 2,
    words.change_operand: 4,
    words.spoil_characters: 0.3,
    lines.delete: 4,
    lines.delete_declaration: 2,
    lines.repeat: 3,
    lines.swap_neighbours: 2,
    lines.move: 3,
    lines.splice_operation: 2,
    lines.splice_declaration: 2,
    lines.drop_terminator: 0.7,
    lines.add_block: 1,
    lines.wrap_in_region: 1.5,
    lines.route_through: 4,
    lines.change_arity: 2,
    lines.change_signature: 1.5,
    lines.drop_body: 1.5,
    lines.recurse: 1,
    lines.change_visibility: 1,
    lines.wrap_module: 0.5,
    lines.shuffle_declarations: 1,
    lines.nest_deeply: 0.1,
}
"""Weights of mutations."""


def mutate(rng: random.Random, seed: Seed, corpus: Corpus) -> bytes:
    """Returns a mutated seed: with one to five mutations, seldom none."""
    if seed.is_bytecode:
        return _flip(rng, seed.data)
    text = seed.text
    for _ in range(rng.choice([0, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5]) or rng.choice([0, 1, 1, 1])):
        for mutation in rng.choices(list(MUTATIONS), list(MUTATIONS.values()), k=5):
            changed = mutation(rng, text, corpus)
            if changed:
                text = changed
                break
    return text.encode(errors="surrogateescape")


def _flip(rng: random.Random, data: bytes) -> bytes:
    """Returns bytecode with some bytes changed, more often in operations than in names."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4])):
        position = rng.randrange(4, len(changed))
        changed[position] = rng.choice([changed[position] ^ (1 << rng.randrange(8)), rng.randrange(256)])
    return bytes(changed)


def pick_seed(rng: random.Random, corpus: Corpus) -> Seed:
    """Returns a seed: bytecode seldom, since MLIR's own reader hardly checks it."""
    if rng.random() < 0.04:
        return rng.choice(corpus.bytecodes)
    return rng.choices(corpus.texts, corpus.weights)[0]

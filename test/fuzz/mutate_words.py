"""Mutations within a line: attributes, symbols, types, shardings, meshes, operands, bytes.

Each gets a random generator, a text and the corpus, and returns the changed text, or None if it does not
apply to the text.
"""

from __future__ import annotations

import random
import re

import syntax
from corpus import Corpus
from strange import AXES, INTEGERS, MESHES, STRINGS, TYPES, strange_dims, strange_symbol, strange_value

from pathways.dialect import FORMS


def _pick_attribute(
    rng: random.Random, text: str, *, valued: bool = False
) -> tuple[syntax.Dictionary, syntax.Attribute] | None:
    """Returns an attribute; those of this compiler more often than those that MLIR checks."""
    dictionaries = syntax.dictionaries(text)
    pairs = [(d, a) for d in dictionaries for a in d.attributes if not valued or a.value is not None]
    if not pairs:
        return None
    weights = [0.3 if _is_of_mlir(attribute.key) else 1.0 for _, attribute in pairs]
    return rng.choices(pairs, weights)[0]


def _is_of_mlir(key: str) -> bool:
    return key.startswith(("jax.", "mhlo.")) or key in (
        *("function_type", "broadcast_dimensions", "dot_dimension_numbers", "permutation", "sym_visibility"),
        *("comparison_direction", "compare_type", "precision_config", "iota_dimension"),
    )


def change_value(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    picked = _pick_attribute(rng, text)
    if picked is None:
        return None
    _, attribute = picked
    choice = rng.random()
    if choice < 0.35:
        value = strange_value(rng, text)
    elif choice < 0.6 and attribute.value is not None:
        value = _similar(rng, attribute.value, text)
    elif choice < 0.85 and attribute.key in corpus.values:
        value = rng.choice(corpus.values[attribute.key])
    else:
        value = rng.choice(corpus.values[rng.choice(corpus.keys)])
    new = attribute.key if value == "unit" else f"{attribute.key} = {value}"
    return syntax.replace(text, attribute.start, attribute.end, new)


def _similar(rng: random.Random, value: str, text: str) -> str:
    """Returns another value of the same kind."""
    if value.startswith("@"):
        return strange_symbol(rng, text)
    if value.startswith('"'):
        return rng.choice(STRINGS)
    if value.startswith("["):
        parts = syntax.split_list(value[1:-1])
        match rng.randrange(4):
            case 0:
                parts.pop(rng.randrange(len(parts)))
            case 1:
                parts.append(rng.choice(parts))
            case 2:
                parts[rng.randrange(len(parts))] = strange_value(rng, text)
            case _:
                rng.shuffle(parts)
        return f"[{', '.join(part for part in parts if part)}]"
    if "sdy.sharding<" in value:
        return re.sub(r"\[.*\]", lambda _: strange_dims(rng), value)
    numbers = list(syntax.NUMBER.finditer(value))
    if not numbers:
        return strange_value(rng, text)
    number = rng.choice(numbers)
    return syntax.replace(value, number.start(), number.end(), rng.choice(INTEGERS))


def drop_attribute(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    picked = _pick_attribute(rng, text)
    if picked is None:
        return None
    dictionary, attribute = picked
    rest = [text[a.start : a.end] for a in dictionary.attributes if a is not attribute]
    return syntax.replace(text, dictionary.start, dictionary.end, ", ".join(rest))


def add_attribute(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    """Adds an attribute of any operation to a dictionary, or to an argument or operation that has none."""
    key = rng.choice(corpus.keys)
    value = strange_value(rng, text) if rng.random() < 0.4 else rng.choice(corpus.values[key])
    new = key if value == "unit" else f"{key} = {value}"
    if rng.random() < 0.3:
        places = [m.end() for m in re.finditer(r"%[\w$.]+: [^,(){}\s]+(?=[,)])", text)]
        places += [m.start() for m in re.finditer(r"(?<=\)) : \(", text)]
        return None if not places else _insert(text, rng.choice(places), f" {{{new}}}")
    dictionaries = syntax.dictionaries(text)
    if not dictionaries:
        return None
    dictionary = rng.choice(dictionaries)
    if any(attribute.key == key for attribute in dictionary.attributes):
        return None
    return _insert(text, dictionary.start, f"{new}, ")


def rename_key(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    picked = _pick_attribute(rng, text)
    if picked is None:
        return None
    start = picked[1].start
    return syntax.replace(text, start, start + len(picked[1].key), rng.choice(corpus.keys))


def swap_values(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    """Swaps the values of two attributes."""
    one, two = (_pick_attribute(rng, text, valued=True) for _ in range(2))
    if one is None or two is None:
        return None
    first, second = sorted((one[1], two[1]), key=lambda attribute: attribute.start)
    if first.end > second.start:
        return None
    text = syntax.replace(text, second.start, second.end, f"{second.key} = {first.value}")
    return syntax.replace(text, first.start, first.end, f"{first.key} = {second.value}")


def change_form(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    """Claims another form, none, or something that is no form."""
    claim = syntax.FORM.search(text)
    value = rng.choice([*FORMS, "host", "", r"\E9"])
    new = f'pw.form = "{value}"' if rng.random() < 0.85 else f"pw.form = {strange_value(rng, text)}"
    if rng.random() < 0.05:
        new = "pw.form"
    if claim is not None:
        return syntax.replace(text, *claim.span(), "pw.nothing" if rng.random() < 0.25 else new)
    if text.lstrip().startswith(("!", "#")):
        return None
    if text.startswith("module @"):
        return re.sub(
            r"^(module @\S+)(?! attributes)", lambda m: f"{m[1]} attributes {{{new}}}", text, count=1
        )
    return f"module attributes {{{new}}} {{\n{text}}}\n"


def change_symbol(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    """Renames one reference or declaration, or all of one name."""
    places = list(syntax.SYMBOL.finditer(text))
    if not places:
        return None
    place = rng.choice(places)
    new = strange_symbol(rng, text)
    if rng.random() < 0.7:
        return syntax.replace(text, *place.span(), new)
    if "::" in new:
        return None
    bare, old = new[1:].strip('"'), place.group()[1:].strip('"')
    return text.replace(place.group(), new).replace(f'sym_name = "{old}"', f'sym_name = "{bare}"')


def retype_everywhere(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    types = list(dict.fromkeys(syntax.TENSOR.findall(text)))
    if not types:
        return None
    return text.replace(rng.choice(types), _new_type(rng, types, corpus))


def retype_line(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    """Changes the type of all values of one line, or of one of them."""
    lines = text.split("\n")
    numbers = [n for n, line in enumerate(lines) if syntax.TENSOR.search(line)]
    if not numbers:
        return None
    number = rng.choice(numbers)
    types = syntax.TENSOR.findall(lines[number])
    count = rng.choice([0, 1])
    lines[number] = lines[number].replace(rng.choice(types), _new_type(rng, types, corpus), *[count] * count)
    return "\n".join(lines)


def _new_type(rng: random.Random, types: list[str], corpus: Corpus) -> str:
    choice = rng.random()
    if choice < 0.5:
        return rng.choice(TYPES)
    if choice < 0.7:
        return rng.choice(corpus.types)
    return re.sub(
        r"\d+(?=x)", lambda m: rng.choice([m[0], "0", "1", "3", "?", "7", "1000000"]), rng.choice(types)
    )


def change_mesh(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    return _replace_one(
        rng, text, r'(?<=<)\[(?:"[^"]*"=-?\d+(?:, )?)*\](?:, device_ids=\[[\d, ]*\])?(?=>)', MESHES
    )


def change_sharding(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    places = list(re.finditer(r"(?<=<)(@[\w.]+|mesh<.*?>), (\[[^\[\]]*\])", text))
    if not places:
        return None
    place = rng.choice(places)
    if rng.random() < 0.2:
        return syntax.replace(text, *place.span(1), strange_symbol(rng, text))
    if rng.random() < 0.4:
        dims = syntax.split_list(place[2][1:-1])
        dims[rng.randrange(len(dims))] = rng.choice(AXES)
        return syntax.replace(text, *place.span(2), f"[{', '.join(dims)}]")
    return syntax.replace(text, *place.span(2), strange_dims(rng))


def change_number(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    return _replace_one(rng, text, syntax.NUMBER.pattern, INTEGERS)


def change_operation_name(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    names = (
        "launch",
        "transfer",
        "mirror",
        "split",
        "reduce",
        "release",
        "slice",
        "channel",
        "loop",
        "constant",
    )
    return _replace_one(
        rng, text, r'(?<=")pw\.\w+(?="\()', (*(f"pw.{name}" for name in names), "pw.no", "test.no")
    )


def change_operand(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    """Replaces an operand by another value of the same type."""
    lines = text.split("\n")
    functions = syntax.functions(lines)
    if not functions:
        return None
    function = rng.choice(functions)
    places = [
        (n, place)
        for n in range(function.first + 1, function.last + 1)
        for place in syntax.VALUE.finditer(lines[n], lines[n].find(" = ") + 1)
    ]
    if not places:
        return None
    number, place = rng.choice(places)
    defined = "\n".join(lines[function.first : number])
    candidates = [
        value
        for value, type_ in function.values.items()
        if type_ == function.values.get(place.group())
        and value != place.group()
        and re.search(rf"{re.escape(value.partition('#')[0])}(:\d+)?( =|: )", defined)
    ]
    if not candidates:
        return None
    lines[number] = syntax.replace(lines[number], *place.span(), rng.choice(candidates))
    return "\n".join(lines)


def spoil_characters(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    """Drops, repeats or inserts some characters, among them bytes that are not UTF-8."""
    start = rng.randrange(len(text))
    end = min(len(text), start + rng.choice([0, 1, 1, 2, 8]))
    new = rng.choice(
        ["", "\udcff", "\udce9", "\0", "{", "}", "(", ")", '"', "<", ">", "%", "@", "\\", text[start:end] * 2]
    )
    return syntax.replace(text, start, end, new)


def _replace_one(rng: random.Random, text: str, pattern: str, choices: tuple[str, ...]) -> str | None:
    places = list(re.finditer(pattern, text))
    return None if not places else syntax.replace(text, *rng.choice(places).span(), rng.choice(choices))


def _insert(text: str, position: int, new: str) -> str:
    return syntax.replace(text, position, position, new)

"""Mutations of whole operations: deletions, repetitions, moves, nesting, and copies from other modules.

Each gets a random generator, a text and the corpus, and returns the changed text, or None if it does not
apply to the text.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import syntax
from corpus import Corpus

Lines = list[str]


_RETURN = re.compile(r"^\s*(func\.)?return\b|\"\w+\.return\"")


def _pick(rng: random.Random, lines: Lines, *, inside: bool | None = None) -> syntax.Statement | None:
    """Returns an operation that is no return; `inside` selects one inside or outside of functions."""
    functions = syntax.functions(lines)

    def is_inside(statement: syntax.Statement) -> bool:
        return any(f.first < statement.first and statement.last < f.last for f in functions)

    found = [
        statement
        for statement in syntax.statements(lines)
        if not lines[statement.first].lstrip().startswith(("module", '"builtin.module"'))
        and not _RETURN.search(lines[statement.first])
        and (inside is None or is_inside(statement) == inside)
    ]
    return rng.choice(found) if found else None


def _function_at(lines: Lines, number: int) -> syntax.Function | None:
    return next((f for f in syntax.functions(lines) if f.first < number < f.last), None)


def _cut(lines: Lines, statement: syntax.Statement) -> Lines:
    return lines[statement.first : statement.last + 1]


def _use_instead(rng: random.Random, lines: Lines, function: syntax.Function, names: list[str]) -> None:
    """Has readers of values read other values of the same type, if there are any."""
    for number in range(function.first + 1, function.last + 1):
        for value in syntax.VALUE.findall(lines[number]):
            if value.partition("#")[0] not in names:
                continue
            type_ = function.values.get(value)
            candidates = [
                other
                for other, other_type in function.values.items()
                if other_type == type_ and other.partition("#")[0] not in names
            ]
            if candidates:
                lines[number] = _substituted(lines[number], {value: rng.choice(candidates)})


def _substituted(line: str, names: dict[str, str]) -> str:
    """Returns the line with other operands; results keep their names."""
    match = re.match(r"\s*%[\w$.]+(:\d+)? = ", line)
    start = match.end() if match else 0
    return line[:start] + syntax.VALUE.sub(lambda m: names.get(m.group(), m.group()), line[start:])


def _renamed(line: str, prefix: str) -> str:
    """Returns the line with another name for its results."""
    return re.sub(r"^(\s*)%([\w$.]+)(?=(:\d+)? = )", rf"\1%{prefix}_\2", line)


def delete(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    """Deletes an operation; readers of its results read other values of their types."""
    lines = text.split("\n")
    statement = _pick(rng, lines)
    if statement is None:
        return None
    return "\n".join(without(rng, lines, statement))


def without(rng: random.Random, lines: Lines, statement: syntax.Statement) -> Lines:
    """Returns the lines without an operation; readers of its results read other values of their types."""
    lines = list(lines)
    function = _function_at(lines, statement.first)
    names = syntax.results(lines[statement.first])
    lines[statement.first : statement.last + 1] = [""] * (statement.last + 1 - statement.first)
    if function is not None:
        _use_instead(rng, lines, function, names)
    return [line for line in lines if line]


def delete_declaration(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    """Deletes a function, a slice, a mesh, a channel, a loop or a constant."""
    lines = text.split("\n")
    statement = _pick(rng, lines, inside=False)
    if statement is None:
        return None
    del lines[statement.first : statement.last + 1]
    return "\n".join(lines)


def repeat(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    """Repeats an operation after itself, with results of other names."""
    lines = text.split("\n")
    statement = _pick(rng, lines)
    if statement is None:
        return None
    copy = _cut(lines, statement)
    names = {name: f"%again_{name[1:]}" for name in syntax.results(copy[0])}
    copy[0] = _renamed(copy[0], "again")
    if not names and rng.random() < 0.7:
        copy[0] = re.sub(r'@\w+(?=\(| =)|sym_name = "\w*', r"\g<0>_again", copy[0], count=1)
    lines[statement.last + 1 : statement.last + 1] = copy
    function = _function_at(lines, statement.first)
    if names and function is not None and rng.random() < 0.5:
        for number in range(statement.last + 1 + len(copy), function.last + 1):
            for old, new in names.items():
                if rng.random() < 0.5:
                    lines[number] = re.sub(rf"{re.escape(old)}(?![\w$.-])", lambda _, n=new: n, lines[number])
    return "\n".join(lines)


def swap_neighbours(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    lines = text.split("\n")
    found = syntax.statements(lines)
    pairs = [
        (a, b)
        for a in found
        for b in found
        if a.last + 1 == b.first and a.depth == b.depth and b.last - a.first < 40
    ]
    if not pairs:
        return None
    first, second = rng.choice(pairs)
    lines[first.first : second.last + 1] = [*_cut(lines, second), *_cut(lines, first)]
    return "\n".join(lines)


def move(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    """Moves, or copies, an operation to another place in the module, which may be in another function."""
    lines = text.split("\n")
    statement = _pick(rng, lines)
    if statement is None:
        return None
    copy = _cut(lines, statement)
    source = _function_at(lines, statement.first)
    if rng.random() < 0.5:
        if source is not None:
            _use_instead(rng, lines, source, syntax.results(copy[0]))
        del lines[statement.first : statement.last + 1]
    return _inserted(rng, lines, copy, source)


def _inserted(rng: random.Random, lines: Lines, copy: Lines, source: syntax.Function | None) -> str | None:
    """Returns the text with an operation inserted; its operands become values of the same type there."""
    targets = syntax.functions(lines)
    if rng.random() < 0.2 or not targets or source is None:
        place = rng.randint(0, len(lines)) if rng.random() < 0.3 else min(1, len(lines))
        lines[place:place] = copy
        return "\n".join(lines)
    target = rng.choice(targets)
    first = target.first + (2 if lines[target.first + 1].lstrip().startswith("^") else 1)
    place = rng.randint(first, max(first, target.last - 1))
    defined = "\n".join(lines[target.first : place])
    visible = {
        value: type_
        for value, type_ in target.values.items()
        if re.search(rf"{value.partition('#')[0]}\b", defined)
    }
    names = {}
    for value, type_ in source.values.items():
        candidates = [other for other, other_type in visible.items() if other_type == type_]
        if candidates:
            names[value] = rng.choice(candidates)
    names |= {name: f"%moved_{name[1:]}" for line in copy[1:] for name in syntax.results(line)}
    lines[place:place] = [_renamed(_substituted(line, names), "moved") for line in copy]
    return "\n".join(lines)


def splice_operation(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    """Copies an operation from a function of another seed into one of this text."""
    other = rng.choice(corpus.functions).split("\n")
    statement = _pick(rng, other, inside=True)
    source = _function_at(other, statement.first) if statement else None
    if statement is None or source is None:
        return None
    return _inserted(rng, text.split("\n"), _cut(other, statement), source)


def splice_declaration(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    """Copies a function, slice, mesh, channel, loop or constant of another seed into this text."""
    new = rng.choice(corpus.functions if rng.random() < 0.4 else corpus.symbols)
    if "!" in new.split("\n")[0] and rng.random() < 0.9:
        new = re.sub(r"(?<![\w#])!\w+", "tensor<4xf32>", new)
    lines = text.split("\n")
    first = next((n for n, line in enumerate(lines) if line.startswith(("module", '"builtin.module"'))), None)
    place = 0 if first is None else first + 1
    if first is not None and not lines[first].rstrip().endswith("{"):
        return None
    lines[place:place] = new.split("\n")
    return "\n".join(lines)


def drop_terminator(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    return _edited(rng, text, r"^\s*(func\.)?return\b|\"(func|stablehlo|sdy)\.return\"", lambda _: [])


def add_block(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    """Adds a block to a function, before or after its end, unreachable or reached by a branch."""
    label = f"^bb{rng.randint(7, 9)}"
    arguments = rng.choice(["", "(%extra: tensor<f32>)", "(%extra: tensor<4xf32>)"])

    def with_block(line: str) -> list[str]:
        if rng.random() < 0.5:
            return [line, f"  {label}{arguments}:", line]
        return [f'    "cf.br"(){f"[{label}]"} : () -> ()', f"  {label}:", line]

    return _edited(rng, text, r"^\s*(func\.)?return\b|\"func\.return\"", with_block)


def wrap_in_region(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    """Puts an operation into a region, of an unknown operation or of one that JAX creates."""
    lines = text.split("\n")
    statement = _pick(rng, lines)
    if statement is None:
        return None
    opening, closing = rng.choice(
        [
            ('"test.region"() ({', "}) : () -> ()"),
            ('"test.region"() ({', '  "test.end"() : () -> ()\n}) {pw.slice = @s0} : () -> ()'),
            ('"pw.launch"() ({', "}) {callee = @f, slice = @s0} : () -> ()"),
            ('"pw.loop"() ({', '}) {count = 2, sym_name = "inner"} : () -> ()'),
            ("func.func @inner() {", "  return\n}"),
            ("func.func private @inner() {", "  func.return\n}"),
            ("module {", "}"),
            ('module @inner attributes {pw.form = "placed"} {', "}"),
            ('%t = "test.region"() ({', "}) : () -> tensor<4xf32>"),
        ]
    )
    function = _function_at(lines, statement.first)
    if function is not None:
        _use_instead(rng, lines, function, syntax.results(lines[statement.first]))
    lines[statement.first : statement.last + 1] = [opening, *_cut(lines, statement), closing]
    return "\n".join(lines)


def route_through(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    """Puts an operation between a value and its next readers."""
    lines = text.split("\n")
    functions = syntax.functions(lines)
    statement = _pick(rng, lines, inside=True)
    if not functions or statement is None:
        return None
    function = _function_at(lines, statement.first)
    used = [v for v in syntax.VALUE.findall(lines[statement.first]) if function and v in function.values]
    if function is None or not used:
        return None
    value = rng.choice(used)
    type_ = function.values[value]
    signature = f": ({type_}) -> {type_}"
    new = rng.choice(
        [
            f'%routed = "test.op"({value}) {signature}',
            f'%routed = "test.op"({value}) {{pw.slice = @s0}} {signature}',
            f'%routed = "pw.transfer"({value}) {{slice = @s0}} {signature}',
            f'%routed = "pw.transfer"({value}) {{slice = @s1, order = 0}} {signature}',
            f'%routed = "pw.mirror"({value}) {signature}',
            f'%routed = "pw.mirror"({value}, {value}) : ({type_}, {type_}) -> {type_}',
            f'%routed = "pw.split"({value}) {{loop = @batch}} {signature}',
            f'%routed = "pw.reduce"({value}) {{loop = @batch, kind = "sum"}} {signature}',
            f'%routed = "pw.launch"({value}) {{callee = @f, slice = @s0}} {signature}',
            f'%routed = "stablehlo.negate"({value}) {signature}',
            f'%routed = "stablehlo.custom_call"({value}) {{call_target_name = "x"}} {signature}',
            f'%routed = "func.call"({value}) {{callee = @f}} {signature}',
            f'%routed = "builtin.unrealized_conversion_cast"({value}) {signature}',
            f'"pw.release"({value}) : ({type_}) -> ()',
            f'"test.op"({value}) : ({type_}) -> ()',
        ]
    )
    if new.startswith("%routed"):
        lines[statement.first] = _substituted(lines[statement.first], {value: "%routed"})
    lines.insert(statement.first, new)
    return "\n".join(lines)


def change_arity(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    """Drops or repeats an operand or a result of an operation in the generic form."""
    lines = text.split("\n")
    numbers = [n for n, line in enumerate(lines) if re.search(r'"[\w.]+"\(.*\) : \(.*\) -> ', line)]
    if not numbers:
        return None
    number = rng.choice(numbers)
    head, _, signature = lines[number].rpartition(" : ")
    inputs, _, outputs = signature.partition(" -> ")
    if rng.random() < 0.3:
        lines[number] = (
            f"{head} : {inputs} -> ({', '.join([*_list(outputs), 'tensor<f32>'][rng.choice([0, 1]) :])})"
        )
        return "\n".join(lines)
    operands = re.search(r'"[\w.]+"\(([^()]*)\)', head)
    values, types = (_list(operands[1]) if operands else []), _list(inputs)
    if operands is None or not values or len(values) != len(types):
        return None
    position = rng.randrange(len(values))
    if rng.random() < 0.5:
        del values[position], types[position]
    else:
        values.append(values[position])
        types.append(types[position])
    head = syntax.replace(head, *operands.span(1), ", ".join(values))
    lines[number] = f"{head} : ({', '.join(types)}) -> {outputs}"
    return "\n".join(lines)


def _list(text: str) -> list[str]:
    bare = text.strip().removeprefix("(").removesuffix(")")
    return syntax.split_list(bare) if bare else []


def change_signature(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    """Adds, drops or repeats an argument or a result of a function, independently of its callers."""
    lines = text.split("\n")
    heads = [(n, head) for n, line in enumerate(lines) if (head := _HEAD.search(line))]
    if not heads:
        return None
    number, head = rng.choice(heads)
    arguments, results = _list(head["arguments"]), _list(head["results"] or "")
    if rng.random() < 0.4 or not results:
        extra = rng.choice(["tensor<4xf32>", "tensor<f32>", "i32", *results[:1]])
        extra = f"%extra: {extra}" if head["end"] else extra
        arguments = rng.choice([[*arguments, extra], [extra, *arguments], arguments[:-1], arguments[1:]])
    else:
        chosen = rng.randrange(len(results))
        change = _without if rng.random() < 0.5 else _repeated
        results = change(results, chosen)
        end = next((n for n in range(number, len(lines)) if lines[n].lstrip().startswith("return ")), None)
        if head["end"] and end is not None:
            values, _, types = lines[end].replace("return", "", 1).partition(" : ")
            both = [", ".join(change(syntax.split_list(part), chosen)) for part in (values, types)]
            lines[end] = f"    return {' : '.join(both) if all(both) else ''}"
    to = f" -> ({', '.join(results)})" if results else ""
    new = f"{head['name']}({', '.join(arguments)}){to}{head['end']}"
    lines[number] = syntax.replace(lines[number], *head.span(), new)
    return "\n".join(lines)


_HEAD = re.compile(
    r"(?P<name>func\.func .*?@[\w.]+)\((?P<arguments>.*?)\)(?: -> (?P<results>.*?))?(?P<end>(?: \{)?)$"
)


def _without(parts: Lines, number: int) -> Lines:
    return [part for n, part in enumerate(parts) if n != number]


def _repeated(parts: Lines, number: int) -> Lines:
    return [*parts, parts[min(number, len(parts) - 1)]]


def drop_body(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    """Removes the body of a function."""
    lines = text.split("\n")
    functions = [f for f in syntax.functions(lines) if lines[f.first].rstrip().endswith("{")]
    if not functions:
        return None
    function = rng.choice(functions)
    if '"func.func"' in lines[function.first]:
        lines[function.first] = lines[function.first].replace('"public"', '"private"')
        del lines[function.first + 1 : function.last]
        return "\n".join(lines)
    head = re.sub(r"%[\w$.]+: ", "", lines[function.first].rstrip().removesuffix("{").rstrip())
    if rng.random() < 0.8 and "private" not in head:
        head = head.replace("public ", "").replace("func.func ", "func.func private ", 1)
    lines[function.first : function.last + 1] = [head]
    return "\n".join(lines)


def recurse(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    """Has a function call or launch itself, or two of them each other."""
    lines = text.split("\n")
    functions = [(f, m) for f in syntax.functions(lines) if (m := syntax.SYMBOL.search(lines[f.first]))]
    if not functions:
        return None
    function, _ = rng.choice(functions)
    _, callee = rng.choice([rng.choice(functions), (function, syntax.SYMBOL.search(lines[function.first]))])
    name = callee.group() if callee else "@main"
    arguments = re.findall(r"(%[\w$.]+): ((?:!|tensor<)[^,(){}\s]*>?)", lines[function.first])
    operands = ", ".join(value for value, _ in arguments)
    types = ", ".join(type_ for _, type_ in arguments)
    results = re.search(r" -> \(?([^(){}]*?)\)?(?: \{|$| attributes)", lines[function.first])
    signature = f": ({types}) -> ({results[1] if results else ''})"
    count = len(syntax.split_list(results[1])) if results else 0
    target = f"%recursion:{count} = " if count else ""
    launch = f'{target}"pw.launch"({operands}) {{callee = {name}, slice = @s0}} {signature}'
    call = f"{target}func.call {name}({operands}) {signature}"
    lines.insert(function.first + 1, rng.choice([launch, call, call]))
    return "\n".join(lines)


def change_visibility(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    places = list(re.finditer(r"func\.func (?:(?:public|private|nested) )?(?=@)", text))
    if not places:
        return None
    new = f"func.func {rng.choice(['', 'public ', 'private ', 'nested '])}"
    return syntax.replace(text, *rng.choice(places).span(), new)


def wrap_module(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    """Puts the module into another one, or several of them next to each other."""
    if re.search(r"(?m)^[!#]", text):
        return None
    return rng.choice(
        [
            f"module {{\n{text}}}\n",
            f"{text}\n{text}",
            f'module attributes {{pw.form = "placed"}} {{\n{text}}}\n',
        ]
    )


def shuffle_declarations(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    """Moves a declaration to the end of its module."""
    lines = text.split("\n")
    statement = _pick(rng, lines, inside=False)
    if statement is None:
        return None
    moved = _cut(lines, statement)
    del lines[statement.first : statement.last + 1]
    end = max((n for n, line in enumerate(lines) if line.startswith("}")), default=len(lines))
    lines[end:end] = moved
    return "\n".join(lines)


def nest_deeply(rng: random.Random, text: str, corpus: Corpus) -> str | None:
    """Adds regions within regions."""
    depth = rng.choice([10, 100, 400])
    return text + '"test.region"() ({\n' * depth + "}) : () -> ()\n" * depth


def _edited(rng: random.Random, text: str, pattern: str, edit: Callable[[str], Lines]) -> str | None:
    """Returns the text with one of the lines that match replaced by `edit`."""
    lines = text.split("\n")
    numbers = [n for n, line in enumerate(lines) if re.search(pattern, line)]
    if not numbers:
        return None
    number = rng.choice(numbers)
    lines[number : number + 1] = edit(lines[number])
    return "\n".join(lines)

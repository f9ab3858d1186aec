"""Pretty form of printed IR: `pw` operations without quotes, braces and repeated types.

It is for people alone. Tools read MLIR's generic form, which the output keeps for every other dialect.
Works on printed text, line by line: an operation of this dialect has no regions, so it is one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pathways.dialect.syntax.lexer import split

# Groups: indentation, results, name, operands, attributes, and the type of the operation.
_OPERATION = re.compile(r'(\s*)((?:%[^=()"]* = )?)"(pw\.\w+)"\(([^()"]*)\)(?: \{(.*)\})? : (\(.*)')
_LOCATION = re.compile(r'^(.*?)( loc\((?:#loc\d*|unknown|"(?:[^"\\]|\\.)*":\d+:\d+)\))?$')
_NUMBER = re.compile(r"(?<![\w.])(-?\d+) : i64\b")
_ORIGIN = re.compile(r'(\w+) = (?:"(\w+)"|(\d+))')
# Parts of a format: brackets, whose contents may be left out, and the text between them.
_PIECES = re.compile(r"\[[^\]]*\]|[^\[]+")
_STAND_IN = re.compile(r"\$(\w+)")

_IN_LOOP = "[ in $loop][ #$microbatch]"
FORMATS = {
    "pw.slice": "$sym_name mesh $mesh[ replica $replica][ of $replica_of][ host $host]",
    "pw.channel": "$sym_name from $src to $dst capacity $capacity",
    "pw.constant": "$sym_name = $value",
    "pw.loop": "$sym_name[ of $count][ in chunks of $chunk][ inside $parent][ schedule $schedule]",
    "pw.launch": "$callee($0) on $slice[ $origins]" + _IN_LOOP + "[ order $order]",
    "pw.transfer": "$0 to $slice[ over $channel]" + _IN_LOOP + "[ order $order]",
    "pw.send": "$0 from $slice over $channel[ index $index]" + _IN_LOOP + "[ order $order]",
    "pw.recv": "on $slice over $channel[ index $index]" + _IN_LOOP + "[ order $order]",
    "pw.mirror": "$0",
    "pw.release": "$0",
    "pw.split": "$0 in $loop[ on $slice]",
    "pw.reduce": "$kind $0 in $loop[ inside $outer][ on $slice]",
    "pw.all_reduce": "$0[ in $loop][ on $slice]",
    "pw.reduce_scatter": "$0 along $dim[ on $slice]",
    "pw.all_gather": "$0 along $dim[ on $slice]",
    "pw.all_to_all": "$0 on $slices" + _IN_LOOP + "[ orders $orders]",
    "pw.replica": "on $slice",
    "pw.carry": "$0 in $loop[ on $slice]",
    "pw.next": "$0 in $loop[ inside $outer][ on $slice]",
    "pw.index": "of $loop",
    "pw.until": "$0 in $loop[ on $slice]",
    "pw.run": "$part($0)",
    "pw.repeat": "$part($0) until $until",
}
"""Format of each operation: `$name` is an attribute, `$0` the operands, `[...]` appears if its attribute has
a value. Other attributes follow in braces, then the types of the results."""


def pretty(text: str) -> str:
    """Returns printed IR in its pretty form; operations of other dialects stay as they are.

    Args:
      text: a module as MLIR prints it.

    Example: `%0 = "pw.launch"(%x) {callee = @f, order = 0 : i64, slice = @s0} : (tensor<2xf32>) ->
    tensor<2xf32>` becomes `%0 = pw.launch @f(%x) on @s0 order 0 : tensor<2xf32>`.
    """
    return "\n".join(map(_line, text.split("\n")))


def _line(line: str) -> str:
    body, location = _LOCATION.fullmatch(line).groups(default="")  # type: ignore[union-attr]
    written = _OPERATION.fullmatch(body)
    if written is None or written[3] not in FORMATS:
        return line
    indent, results, name, inputs, attributes, signature = written.groups(default="")
    values = dict(_attributes(attributes)) | {"0": inputs}
    named = {"0"}
    text = _filled(FORMATS[name], values, named)
    if text is None:
        return line
    rest = [f"{key} = {value}" if value else key for key, value in values.items() if key not in named]
    braces = f" {{{', '.join(rest)}}}" if rest else ""
    return f"{indent}{results}{name} {text}{braces}{_types(signature)}{location}"


def _attributes(text: str) -> Iterator[tuple[str, str]]:
    for entry in split(text, ","):
        name, _, value = entry.partition(" = ")
        yield name.strip(), _value(name.strip(), value.strip())


def _value(name: str, text: str) -> str:
    if name == "origins":
        return f"[{', '.join(map(_origin, split(text[1:-1], ',')))}]"
    text = _NUMBER.sub(r"\1", text)
    if name == "sym_name":
        return f"@{text[1:-1]}"
    return text[1:-1] if name in ("kind", "schedule") else text


def _origin(text: str) -> str:
    """Returns the origin of a launch in short: `fwd 0 #3` for the forward of stage 0 on microbatch 3."""
    fields = {name: word or number for name, word, number in _ORIGIN.findall(text)}
    part = f".{fields['part']}" if "part" in fields else ""
    stage = f" {fields['stage']}" if "stage" in fields else ""
    microbatch = f" #{fields['microbatch']}" if "microbatch" in fields else ""
    return f"{fields.get('kind', '')}{part}{stage}{microbatch}"


def _filled(form: str, values: dict[str, str], named: set[str]) -> str | None:
    """Returns a format with values filled in, and notes their names; None if a value is missing."""
    filled = ""
    for piece in _PIECES.findall(form):
        names = _STAND_IN.findall(piece)
        if all(name in values for name in names):
            named.update(names)
            filled += _STAND_IN.sub(lambda match: values[match[1]], piece.strip("[]"))
        elif not piece.startswith("["):
            return None
    return filled.strip()


def _types(signature: str) -> str:
    """Returns the types of results, from the type of an operation: ` : tensor<2xf32>`, or an empty string."""
    *_, results = split(signature, "->")
    results = results.strip()
    types = split(results[1:-1], ",") if results.startswith("(") else [results]
    types = [type_.strip() for type_ in types if type_.strip()]
    if len(types) > 1 and len(set(types)) == 1:
        return f" : {len(types)} x {types[0]}"
    return f" : {', '.join(types)}" if types else ""

"""Programs as plain data: what a seed makes, what can be kept in a file, and made smaller piece by piece."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

Spec = tuple[str | None, ...]
"""The axes of a `PartitionSpec`."""


@dataclasses.dataclass(frozen=True)
class Input:
    """An argument of the program.

    Attributes:
      shape: of one microbatch, when it is cut.
      dtype: or `key` for a typed PRNG key.
      form: `array`, `numpy`, or `python` for a number.
      donated: whether the caller gives it up.
      cut: whether the loop over microbatches cuts it.
      spec: what `in_shardings` of the program says of it.
    """

    shape: tuple[int, ...]
    dtype: str
    form: str = "array"
    donated: bool = False
    cut: bool = False
    spec: Spec | None = None


@dataclasses.dataclass(frozen=True)
class Apply:
    """An operation on earlier values of its piece, by their numbers from the end.

    Attributes:
      op: a key of `operations.OPERATIONS`.
      operands: two numbers; -1 is the last value.
      number: what else the operation wants to know, such as an axis.
      wraps: keys of `transforms.TRANSFORMS`, the innermost first.
    """

    op: str
    operands: tuple[int, int]
    number: int
    wraps: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Piece:
    """A function of a few values, placed on a slice or glue, and how it is called.

    Attributes:
      place: the number of its slice; None for glue.
      operands: which values of the program it reads.
      applies: what it computes.
      results: how many of its last values it returns.
      inside: transforms of the function itself.
      around: transforms of what `pw.jit` makes of it.
      in_specs: `in_shardings`, when one is said for each operand.
      out_spec: `out_shardings`, for all results.
      unfit: whether specs stay where they do not fit an array.
      static: values for a static argument; it is called with each.
      nested: whether the call is a program of its own.
      tree: whether arguments and results are trees.
      stage: the number of its stage, where it is said.
    """

    place: int | None
    operands: tuple[int, ...]
    applies: tuple[Apply, ...]
    results: int = 1
    inside: tuple[str, ...] = ()
    around: tuple[str, ...] = ()
    in_specs: tuple[Spec | None, ...] | None = None
    out_spec: Spec | None = None
    unfit: bool = False
    static: tuple[Any, ...] = ()
    nested: bool = False
    tree: bool = False
    stage: int | None = None


@dataclasses.dataclass(frozen=True)
class MicrobatchLoop:
    """A loop over microbatches: how many, under which schedule, what becomes of each result."""

    count: int
    schedule: str
    reduce: tuple[str, ...]
    gradient: bool


@dataclasses.dataclass(frozen=True)
class Sketch:
    """A program.

    Attributes:
      slices: the shape of each slice.
      inputs: its arguments.
      pieces: what it does; each appends its results to the values of the program.
      results: which values it returns.
      x64: whether JAX's 64 bit types are on.
      overlap: whether the slices share devices.
      nesting: how arguments and results are nested: 0 to 3.
      transform: what is done with the whole of it before it is a program; a key of `sketched.WHOLE`.
      loop: the loop that all pieces are in.
      turns: the loop of JAX around all of that; a key of `sketched.TURNS`.
      static: values for a static argument of the program; it is called with each.
      fuse: the option of the program.
      calls: how often it is called.
      threads: in how many threads at the same time.
      under_mesh: whether it is called under `jax.set_mesh`.
      replicas: how many times every slice exists.
    """

    slices: tuple[tuple[int, ...], ...]
    inputs: tuple[Input, ...]
    pieces: tuple[Piece, ...]
    results: tuple[int, ...]
    x64: bool = False
    overlap: bool = False
    nesting: int = 0
    transform: str = ""
    loop: MicrobatchLoop | None = None
    turns: str = ""
    static: tuple[Any, ...] = ()
    fuse: bool = False
    calls: int = 1
    threads: int = 1
    under_mesh: bool = False
    replicas: int = 1


def to_json(sketch: Sketch) -> str:
    """The sketch as text."""
    return json.dumps(dataclasses.asdict(sketch))


def from_json(text: str) -> Sketch:
    """Reads what `to_json` writes."""
    fields = _tuples(json.loads(text))
    pieces = tuple(
        Piece(**{**piece, "applies": tuple(Apply(**apply) for apply in piece["applies"])})
        for piece in fields["pieces"]
    )
    loop = MicrobatchLoop(**fields["loop"]) if fields["loop"] else None
    inputs = tuple(Input(**each) for each in fields["inputs"])
    return Sketch(**{**fields, "pieces": pieces, "loop": loop, "inputs": inputs})


def _tuples(value: Any) -> Any:
    match value:
        case list():
            return tuple(map(_tuples, value))
        case dict():
            return {key: _tuples(each) for key, each in value.items()}
    return value


def smaller(sketch: Sketch) -> Iterator[Sketch]:
    """Sketches that are a little smaller, the largest steps first."""
    change = dataclasses.replace
    for n in range(len(sketch.pieces)):
        if len(sketch.pieces) > 1:
            yield _without_piece(sketch, n)
    yield from _plainer(sketch)
    for n, piece in enumerate(sketch.pieces):
        for simpler in _smaller_pieces(piece):
            yield change(sketch, pieces=(*sketch.pieces[:n], simpler, *sketch.pieces[n + 1 :]))
    if len(sketch.results) > 1:
        for n in range(len(sketch.results)):
            yield change(sketch, results=sketch.results[:n] + sketch.results[n + 1 :])
    for n, each in enumerate(sketch.inputs):
        for simpler in _smaller_inputs(each):
            yield change(sketch, inputs=(*sketch.inputs[:n], simpler, *sketch.inputs[n + 1 :]))
    for n in range(len(sketch.inputs)):
        if len(sketch.inputs) > 1:
            yield _without_input(sketch, n)
    for n in range(len(sketch.slices)):
        if sketch.slices[n] != (1,):
            yield change(sketch, slices=(*sketch.slices[:n], (1,), *sketch.slices[n + 1 :]))


def _plainer(sketch: Sketch) -> Iterator[Sketch]:
    """The sketch with one of its options as it is unless something is said."""
    for field in dataclasses.fields(Sketch):
        if field.default is not dataclasses.MISSING and getattr(sketch, field.name) != field.default:
            yield dataclasses.replace(sketch, **{field.name: field.default})
    if sketch.loop is not None and sketch.loop.gradient:
        yield dataclasses.replace(sketch, loop=dataclasses.replace(sketch.loop, gradient=False))
    if len(sketch.static) > 1:
        yield dataclasses.replace(sketch, static=sketch.static[:1])
        yield dataclasses.replace(sketch, static=sketch.static[1:])


def _smaller_pieces(piece: Piece) -> Iterator[Piece]:
    change = dataclasses.replace
    for n in range(len(piece.applies)):
        yield change(piece, applies=piece.applies[:n] + piece.applies[n + 1 :])
    for field in dataclasses.fields(Piece):
        if field.default is not dataclasses.MISSING and getattr(piece, field.name) != field.default:
            yield change(piece, **{field.name: field.default})
    for name in ("inside", "around"):
        wraps = getattr(piece, name)
        for n in range(len(wraps)):
            yield change(piece, **{name: wraps[:n] + wraps[n + 1 :]})
    for n in range(len(piece.operands)):
        if len(piece.operands) > 1:
            specs = piece.in_specs and piece.in_specs[:n] + piece.in_specs[n + 1 :]
            yield change(piece, operands=piece.operands[:n] + piece.operands[n + 1 :], in_specs=specs)
    for n, apply in enumerate(piece.applies):
        for k in range(len(apply.wraps)):
            fewer = change(apply, wraps=apply.wraps[:k] + apply.wraps[k + 1 :])
            yield change(piece, applies=(*piece.applies[:n], fewer, *piece.applies[n + 1 :]))
    if piece.place is not None:
        yield change(piece, place=None)


def _smaller_inputs(each: Input) -> Iterator[Input]:
    for field in dataclasses.fields(Input):
        if field.default is not dataclasses.MISSING and getattr(each, field.name) != field.default:
            yield dataclasses.replace(each, **{field.name: field.default})
    if each.dtype != "float32":
        yield dataclasses.replace(each, dtype="float32", form="array")
    if len(each.shape) > 1:
        yield dataclasses.replace(each, shape=each.shape[:1])
    elif each.shape:
        yield dataclasses.replace(each, shape=())


def _without_piece(sketch: Sketch, number: int) -> Sketch:
    """Without a piece; what read its results reads its first operand."""
    piece = sketch.pieces[number]
    first = len(sketch.inputs) + sum(results_of(p) for p in sketch.pieces[:number])
    count = results_of(piece)

    def renumbered(operands: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(
            n if n < first else piece.operands[0] if n < first + count else n - count for n in operands
        )

    pieces = [
        *sketch.pieces[:number],
        *(dataclasses.replace(p, operands=renumbered(p.operands)) for p in sketch.pieces[number + 1 :]),
    ]
    return dataclasses.replace(sketch, pieces=tuple(pieces), results=renumbered(sketch.results))


def _without_input(sketch: Sketch, number: int) -> Sketch:
    """Without an input; what read it reads the one beside it."""

    def renumbered(operands: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(max(0, n - (n >= number)) for n in operands)

    pieces = tuple(dataclasses.replace(p, operands=renumbered(p.operands)) for p in sketch.pieces)
    inputs = sketch.inputs[:number] + sketch.inputs[number + 1 :]
    return dataclasses.replace(sketch, inputs=inputs, pieces=pieces, results=renumbered(sketch.results))


def results_of(piece: Piece) -> int:
    """How many values a piece adds to those of the program."""
    return max(1, len(piece.static)) * piece.results

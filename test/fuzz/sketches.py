"""Programs as plain data, which seeds generate, files hold, and harnesses reduce."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

Spec = tuple[str | None, ...]
"""Axes of a `PartitionSpec`."""


@dataclasses.dataclass(frozen=True)
class Input:
    """Argument of the program.

    Attributes:
      shape: its shape; that of one microbatch if it is cut.
      dtype: its dtype, or `key` for a typed PRNG key.
      form: `array`, `numpy`, or `python` for a number.
      donated: whether the caller donates it.
      cut: whether the loop over microbatches cuts it.
      spec: its spec in `in_shardings` of the program.
      state: whether the loop takes no gradient of it, as of the state of an optimizer.
    """

    shape: tuple[int, ...]
    dtype: str
    form: str = "array"
    donated: bool = False
    cut: bool = False
    spec: Spec | None = None
    state: bool = False


@dataclasses.dataclass(frozen=True)
class Apply:
    """Operation on earlier values of its piece, by their numbers from the end.

    Attributes:
      op: a key of `operations.OPERATIONS`.
      operands: two numbers; -1 is the last value.
      number: a further parameter of the operation, such as an axis.
      wraps: keys of `transforms.TRANSFORMS`, the innermost first.
    """

    op: str
    operands: tuple[int, int]
    number: int
    wraps: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Piece:
    """Function of a few values, placed on a slice or glue, with its call.

    Attributes:
      place: the number of its slice; None for glue.
      operands: the numbers of the values of the program that it reads.
      applies: its operations.
      results: the number of its last values that it returns.
      inside: transforms of the function itself.
      around: transforms of the result of `pw.jit`.
      in_specs: `in_shardings`, if there is one for each operand.
      out_spec: `out_shardings`, for all results.
      unfit: whether specs that do not fit an array are kept.
      static: values for a static argument; it is called with each.
      nested: whether the call is itself a program.
      tree: whether arguments and results are trees.
      stage: the number of its stage, if it is set.
      beside: a region of JAX in which it is called, too; a key of `transforms.REGIONS`.
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
    beside: str = ""


@dataclasses.dataclass(frozen=True)
class Carry:
    """Value that microbatches pass on, of the shape of a row of the batch.

    Attributes:
      step: a key of `carries.STEPS`.
      read: whether the last result depends on it.
      place: the number of the slice of the step, if it is set.
    """

    step: str
    read: bool = False
    place: int | None = None


@dataclasses.dataclass(frozen=True)
class MicrobatchLoop:
    """Loop over microbatches.

    Attributes:
      count: the number of microbatches.
      schedule: the schedule.
      reduce: the reduction of each result.
      gradient: whether it takes the gradient of the last result.
      inner: a key of `inner_gradients.INNER` for a gradient inside of that.
      carries: the carried values; their final values are further results.
    """

    count: int
    schedule: str
    reduce: tuple[str, ...]
    gradient: bool
    inner: str = ""
    carries: tuple[Carry, ...] = ()


Ref = tuple[str, int]
"""Value outside of the loop: `input` n, the `gradient` of input n, `result` n of the loop, `update` n."""


@dataclasses.dataclass(frozen=True)
class Update:
    """Operation outside of the loop over microbatches.

    Attributes:
      op: a key of `updates.UPDATES`.
      x: its first operand.
      y: its second operand.
      number: a further parameter of the operation.
      into: the input of the next step that it becomes; None for a value that other updates read.
      place: the number of its slice, if it is set.
    """

    op: str
    x: Ref
    y: Ref
    number: int = 0
    into: int | None = None
    place: int | None = None


@dataclasses.dataclass(frozen=True)
class Training:
    """Steps of training: a loop takes gradients, and updates compute the inputs of the next step.

    Attributes:
      updates: the updates in order; the last one into an input counts.
      returned: the other values that a step returns.
      steps: the number of steps.
      zero1: the option of the program.
      exchange_dtype: the option of the program.
    """

    updates: tuple[Update, ...]
    returned: tuple[Ref, ...] = ()
    steps: int = 1
    zero1: bool = False
    exchange_dtype: str | None = None

    def kept(self, inputs: tuple[Input, ...]) -> dict[int, int]:
        """Returns the numbers of the updates that compute the inputs of the next step, by input."""
        return {
            each.into: n
            for n, each in enumerate(self.updates)
            if each.into is not None and not inputs[each.into].cut
        }


@dataclasses.dataclass(frozen=True)
class Sketch:
    """Program.

    Attributes:
      slices: the shape of each slice.
      inputs: its arguments.
      pieces: its pieces; each appends its results to the values of the program.
      results: the numbers of the values that it returns.
      x64: whether JAX's 64 bit types are on.
      overlap: whether the slices share devices.
      nesting: the nesting of arguments and results: 0 to 3.
      transform: the transformation of the whole function before it is a program; a key of `sketched.WHOLE`.
      loop: the loop that all pieces are in.
      outer_loop: the loop of JAX around all of that; a key of `sketched.OUTER_LOOPS`.
      static: values for a static argument of the program; it is called with each.
      fuse: the option of the program.
      calls: the number of calls.
      threads: the number of threads that call it at the same time.
      under_mesh: whether it is called under `jax.set_mesh`.
      replicas: the number of replicas of each slice.
      training: the training after the loop, if there is one.
      leaves: the number of leaves of a tree of registered nodes that it accepts and returns; 0 for no tree.
      ahead: whether it is compiled ahead of time, and called with other weak types.
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
    outer_loop: str = ""
    static: tuple[Any, ...] = ()
    fuse: bool = False
    calls: int = 1
    threads: int = 1
    under_mesh: bool = False
    replicas: int = 1
    training: Training | None = None
    leaves: int = 0
    ahead: bool = False


def to_json(sketch: Sketch) -> str:
    """Returns the sketch as text."""
    return json.dumps(dataclasses.asdict(sketch))


def from_json(text: str) -> Sketch:
    """Reads what `to_json` writes."""
    fields = _tuples(json.loads(text))
    pieces = tuple(
        Piece(**{**piece, "applies": tuple(Apply(**apply) for apply in piece["applies"])})
        for piece in fields["pieces"]
    )
    loop = None
    if fields["loop"]:
        carries = tuple(Carry(**carry) for carry in fields["loop"].get("carries", ()))
        loop = MicrobatchLoop(**{**fields["loop"], "carries": carries})
    inputs = tuple(Input(**each) for each in fields["inputs"])
    training = None
    if fields.get("training"):
        updates = tuple(Update(**update) for update in fields["training"]["updates"])
        training = Training(**{**fields["training"], "updates": updates})
    changed = {"pieces": pieces, "loop": loop, "inputs": inputs, "training": training}
    return Sketch(**{**fields, **changed})


def _tuples(value: Any) -> Any:
    match value:
        case list():
            return tuple(map(_tuples, value))
        case dict():
            return {key: _tuples(each) for key, each in value.items()}
    return value


def smaller(sketch: Sketch) -> Iterator[Sketch]:
    """Yields sketches that are a little smaller, the largest steps first."""
    change = dataclasses.replace
    for n in range(len(sketch.pieces)):
        if len(sketch.pieces) > 1:
            yield _without_piece(sketch, n)
    yield from _plainer(sketch)
    if sketch.training is not None:
        for training in _smaller_trainings(sketch.training):
            yield change(sketch, training=training)
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
    """Yields the sketch with one of its options at its default."""
    for field in dataclasses.fields(Sketch):
        if field.name == "loop" and sketch.training is not None:
            continue
        if field.default is not dataclasses.MISSING and getattr(sketch, field.name) != field.default:
            yield dataclasses.replace(sketch, **{field.name: field.default})
    if sketch.loop is not None and sketch.loop.inner:
        yield dataclasses.replace(sketch, loop=dataclasses.replace(sketch.loop, inner=""))
    if sketch.loop is not None:
        for carries in _fewer_carries(sketch.loop.carries):
            yield dataclasses.replace(sketch, loop=dataclasses.replace(sketch.loop, carries=carries))
    if sketch.loop is not None and sketch.loop.gradient and sketch.training is None:
        yield dataclasses.replace(sketch, loop=dataclasses.replace(sketch.loop, gradient=False))
    if len(sketch.static) > 1:
        yield dataclasses.replace(sketch, static=sketch.static[:1])
        yield dataclasses.replace(sketch, static=sketch.static[1:])


def _fewer_carries(carries: tuple[Carry, ...]) -> Iterator[tuple[Carry, ...]]:
    for n, each in enumerate(carries):
        before, behind = carries[:n], carries[n + 1 :]
        yield before + behind
        if each != Carry(each.step):
            yield (*before, Carry(each.step), *behind)


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


def _smaller_trainings(training: Training) -> Iterator[Training]:
    change = dataclasses.replace
    updates = training.updates
    for n in reversed(range(len(updates))):
        yield _without_update(training, n)
    for field in dataclasses.fields(Training):
        if field.default is not dataclasses.MISSING and getattr(training, field.name) != field.default:
            yield change(training, **{field.name: field.default})
    if training.steps > 2:
        yield change(training, steps=2)
    for n in range(len(training.returned)):
        yield change(training, returned=training.returned[:n] + training.returned[n + 1 :])
    for n, each in enumerate(updates):
        for plainer in (change(each, y=each.x), change(each, place=None), change(each, into=None)):
            if plainer != each:
                yield change(training, updates=(*updates[:n], plainer, *updates[n + 1 :]))


def _without_update(training: Training, number: int) -> Training:
    """Returns the training without an update; its readers read its first operand."""
    removed = training.updates[number]

    def renumbered(ref: Ref) -> Ref:
        kind, n = ref
        if kind != "update" or n < number:
            return ref
        return removed.x if n == number else (kind, n - 1)

    updates = tuple(
        dataclasses.replace(each, x=renumbered(each.x), y=renumbered(each.y))
        for n, each in enumerate(training.updates)
        if n != number
    )
    return dataclasses.replace(training, updates=updates, returned=tuple(map(renumbered, training.returned)))


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
    """Returns the sketch without a piece; readers of its results read its first operand."""
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
    """Returns the sketch without an input; its readers read the one before it."""

    def renumbered(operands: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(max(0, n - (n >= number)) for n in operands)

    pieces = tuple(dataclasses.replace(p, operands=renumbered(p.operands)) for p in sketch.pieces)
    inputs = sketch.inputs[:number] + sketch.inputs[number + 1 :]
    training = sketch.training and _beside_input(sketch.training, number)
    return dataclasses.replace(
        sketch, inputs=inputs, pieces=pieces, results=renumbered(sketch.results), training=training
    )


def _beside_input(training: Training, number: int) -> Training:
    """Returns the training without an input; its readers and updates use the one before it."""

    def renumbered(ref: Ref) -> Ref:
        kind, n = ref
        return (kind, max(0, n - (n >= number))) if kind in ("input", "gradient") else ref

    updates = tuple(
        dataclasses.replace(
            each,
            x=renumbered(each.x),
            y=renumbered(each.y),
            into=None if each.into is None or each.into == number else each.into - (each.into > number),
        )
        for each in training.updates
    )
    return dataclasses.replace(training, updates=updates, returned=tuple(map(renumbered, training.returned)))


def results_of(piece: Piece) -> int:
    """Returns the number of values that a piece adds to those of the program."""
    return max(1, len(piece.static)) * piece.results

"""Random steps of training on replicas, as data; number n of a seed is always the same."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from carries import ADDING, OTHER
from inner_gradients import INNER
from random_sketches import SCHEDULES, SLICES, random_piece, replicas_for
from sketches import Apply, Carry, Input, MicrobatchLoop, Piece, Ref, Sketch, Training, Update, results_of
from updates import ELEMENTWISE, REDUCING, UPDATES

_SHAPES = (
    *((), (1,), (3,), (5,), (7, 3), (0, 4), (700,), (1, 6)),
    *((4,), (8,), (12,), (24,), (4, 4), (12, 8), (24, 4), (6, 5), (3, 8), (2, 3, 4), (5, 2, 12)),
    *((12,), (24,), (12, 8), (24, 4)),
)
_DTYPES = (*["float32"] * 8, "bfloat16", "float16", "complex64")
_SPLIT = ("average", "momentum", "squares")


def random_training(seed: int, number: int) -> Sketch:
    """Returns the steps of a seed with a number."""
    rng = random.Random(f"training/{seed}/{number}")
    slices = tuple(rng.choice([(1,), *SLICES]) for _ in range(rng.choice([1, 1, 2, 2, 3])))
    replicas = replicas_for(rng, slices, 0.95)
    if replicas == 1 and rng.random() < 0.9:
        slices = slices[:1]
        replicas = replicas_for(rng, slices, 1.0)
    if replicas == 4 and rng.random() < 0.4:
        replicas = 3
    inputs = _inputs(rng)
    parameters = [n for n, each in enumerate(inputs) if not each.state and not each.cut]
    pieces = _pieces(rng, slices, inputs, parameters)
    values = len(inputs) + sum(map(results_of, pieces))
    results = (*(rng.randrange(len(inputs), values) for _ in range(rng.choice([0, 0, 1]))), values - 1)
    count = replicas * rng.choice([1, 1, 2, 2, 3]) + (rng.random() < 0.03)
    kinds = [rng.choice(["mean", "sum", "concat"]) for _ in results]
    schedule = rng.choice([*["program", "gpipe", "1f1b"] * 10, *SCHEDULES])
    # A separate generator, so that all other draws stay the same.
    inner_rng = random.Random(f"inner/{seed}/{number}")
    inner = inner_rng.choice([*INNER]) if inner_rng.random() < 0.2 else ""
    if inner:
        schedule = inner_rng.choice([*["gpipe", "1f1b", "eager"] * 3, *SCHEDULES, "1f1b(max-live=2)"])
    carries = _carries(random.Random(f"carries/{seed}/{number}"), len(slices))
    loop = MicrobatchLoop(count, schedule, tuple(kinds), True, inner, carries)
    updates = _updates(rng, inputs, parameters, len(slices))
    training = Training(
        updates,
        tuple(_ref(rng, inputs, len(updates)) for _ in range(rng.choice([0, 0, 1]))),
        steps=rng.choice([1, 2, 3]),
        zero1=rng.random() < 0.85,
        exchange_dtype=rng.choice(["bfloat16", "float16"]) if rng.random() < 0.08 else None,
    )
    if rng.random() < 0.5:
        inputs = [dataclasses.replace(each, donated=not each.cut) for each in inputs]
    return Sketch(
        slices,
        tuple(inputs),
        tuple(pieces),
        results,
        overlap=rng.random() < 0.05,
        loop=loop,
        fuse=rng.random() < 0.15,
        replicas=replicas,
        training=training,
    )


def _carries(rng: random.Random, slices: int) -> tuple[Carry, ...]:
    """Returns the carried values of some programs: most often averages that nothing else reads."""
    count = rng.choice([1, 1, 2, 3]) if rng.random() < 0.4 else 0
    return tuple(
        Carry(
            rng.choice([*ADDING] * 3 + [*OTHER]),
            rng.random() < 0.2,
            rng.randrange(slices) if rng.random() < 0.4 else None,
        )
        for _ in range(count)
    )


def _inputs(rng: random.Random) -> list[Input]:
    """Returns parameters, for each of them perhaps some state, other state, and batches."""
    inputs = []
    for _ in range(rng.choice([1, 1, 2, 2, 3])):
        shape, dtype = rng.choice(_SHAPES), rng.choice(_DTYPES)
        form = rng.choice(["array"] * 6 + ["numpy"])
        inputs.append(Input(shape, dtype, form))
        wide = "float32" if dtype in ("bfloat16", "float16") and rng.random() < 0.7 else dtype
        inputs += [Input(shape, wide, form, state=True) for _ in range(rng.choice([0, 1, 1, 1, 2]))]
    for _ in range(rng.choice([0, 1, 1, 2])):
        dtype = rng.choice(["int32", "int32", "float32", "bool", "key", "uint8"])
        shape = () if dtype == "key" or rng.random() < 0.7 else rng.choice(_SHAPES)
        inputs.append(Input(shape, dtype, state=True))
    for _ in range(rng.choice([1, 1, 2])):
        rows = rng.choice([1, 2, 2, 3, 4])
        inputs.append(Input((rows, *rng.choice([(), (4,), (8,)])), "float32", cut=True))
    return inputs


def _pieces(
    rng: random.Random, slices: tuple[tuple[int, ...], ...], inputs: list[Input], parameters: list[int]
) -> list[Piece]:
    """Returns stages: some share a parameter, and some also read a state."""
    pieces: list[Piece] = []
    values, last = len(inputs), len(inputs) - 1
    stages = rng.choice([1, 1, 2, 2, 3])
    waiting = list(parameters)
    for n in range(stages):
        reads = [waiting.pop(0) if waiting else rng.choice(parameters)]
        if n == stages - 1:
            reads += waiting
        if rng.random() < 0.2:
            reads.append(rng.randrange(values))
        place = None if rng.random() < 0.05 else n % len(slices)
        pieces.append(random_piece(rng, slices, place, (last, *reads), smooth=True))
        # In most programs, all parameters have a gradient.
        applies = tuple(
            dataclasses.replace(each, operands=(-1, each.operands[1]), wraps=())
            for each in pieces[-1].applies
        )
        read = _reading(rng, len(reads))
        pieces[-1] = dataclasses.replace(pieces[-1], applies=(*read, *applies), results=1)
        values += results_of(pieces[-1])
        last = values - 1
    return pieces


def _reading(rng: random.Random, count: int) -> tuple[Apply, ...]:
    """Returns operations that read the first operand of a piece and `count` further ones in sequence."""
    applies = []
    for n in range(count):
        pair = (-count - 1 if n == 0 else -1, -count)
        if rng.random() < 0.5:
            pair = pair[1], pair[0]
        applies.append(Apply(rng.choice(["multiply", "multiply", "add", "matmul"]), pair, rng.randrange(16)))
    return tuple(applies)


def _updates(
    rng: random.Random, inputs: list[Input], parameters: list[int], slices: int
) -> tuple[Update, ...]:
    """Returns updates: an optimizer for each parameter, perhaps with a norm of all, and perhaps others."""
    updates: list[Update] = []

    def add(op: str, x: Ref, y: Ref | None = None, into: int | None = None) -> Ref:
        place = rng.randrange(slices) if rng.random() < 0.04 else None
        updates.append(Update(op, x, x if y is None else y, rng.randrange(8), into, place))
        return "update", len(updates) - 1

    clip = _norm(rng, parameters, add) if rng.random() < 0.25 else None
    for n, parameter in enumerate(parameters):
        behind = parameters[n + 1] if n + 1 < len(parameters) else len(inputs)
        same = [k for k in range(parameter + 1, behind) if inputs[k].shape == inputs[parameter].shape]
        _optimizer(rng, inputs, parameter, [k for k in same if inputs[k].state], clip, add)
    for n, each in enumerate(inputs):
        if each.state and (each.shape == () or each.dtype == "int32") and rng.random() < 0.7:
            add("counted", ("input", n), into=n)
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        into = rng.choice([None, rng.choice([n for n, each in enumerate(inputs) if not each.cut])])
        x = ("input", into) if into is not None else _ref(rng, inputs, len(updates))
        if into is not None and rng.random() < 0.3:
            # For example, two states are swapped.
            shape = inputs[into].shape
            x = (
                "input",
                rng.choice([n for n, each in enumerate(inputs) if each.shape == shape and not each.cut]),
            )
        names = rng.choice([ELEMENTWISE, REDUCING, UPDATES])
        add(rng.choice(list(names)), x, _ref(rng, inputs, len(updates)), into)
    return tuple(updates)


def _norm(rng: random.Random, parameters: list[int], add: Callable[..., Ref]) -> Ref:
    """Returns a norm of all gradients."""
    kind = rng.choice(["norm", "norm", "sum"])
    total = add(kind, ("gradient", parameters[0]))
    for n in parameters[1:]:
        total = add("momentum", total, add(kind, ("gradient", n)))
    return total


def _optimizer(
    rng: random.Random,
    inputs: list[Input],
    parameter: int,
    states: list[int],
    clip: Ref | None,
    add: Callable[..., Ref],
) -> None:
    """Returns the updates of a parameter and its state."""
    shape = inputs[parameter].shape
    step: Ref = ("gradient", parameter)
    scalars = [n for n, each in enumerate(inputs) if each.state and each.shape == () and each.dtype != "key"]
    like = [n for n, each in enumerate(inputs) if each.shape == shape and not each.cut]
    if rng.random() < 0.3:
        step = add(rng.choice(["clipped", "stop", "finite", "wide", "barrier", "rounded"]), step)
    if clip is not None:
        step = add("scaled", step, clip)
    if rng.random() < 0.2:
        step = add("decay", step, ("input", rng.choice(like)))
    if rng.random() < 0.12:
        step = add(rng.choice([*REDUCING]), step, step)
        step = add("scaled", ("gradient", parameter), step)
    updated = []
    for state in states:
        if rng.random() < 0.12:
            # The state is only read, or not at all.
            updated.append(("input", state))
            continue
        updated.append(add(rng.choice(_SPLIT), ("input", state), rng.choice([step, step, *updated]), state))
    if scalars and rng.random() < 0.3:
        step = add("corrected", step, ("input", rng.choice(scalars)))
    for one in updated:
        step = add(rng.choice(["ratio", "average", "decay", "turned", "where"]), rng.choice([step, one]), one)
    if rng.random() < 0.2:
        step = add(
            rng.choice(["where", "turned", "ramp", "noise", "average"]), step, ("input", rng.choice(like))
        )
    if rng.random() < 0.95:
        add("descend", ("input", parameter), step, parameter)


def _ref(rng: random.Random, inputs: list[Input], updates: int) -> Ref:
    """Returns any value outside of the loop, most often an update."""
    if updates and rng.random() < 0.5:
        return "update", rng.randrange(updates)
    kind = rng.choice(["input", "gradient", "gradient", "result"])
    return kind, rng.randrange(len(inputs))

"""Random programs as data; number n of a seed is always the same."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

from operations import OPERATIONS
from sketched import OUTER_LOOPS
from sketches import Apply, Input, MicrobatchLoop, Piece, Sketch, Spec, results_of
from transforms import REGIONS, TRANSFORMS

_SHAPES = ((), (4,), (8,), (3,), (4, 4), (8, 4), (2, 6), (0,), (4, 0), (2, 3, 4), (700,), (16, 40))
_DTYPES = (
    *["float32"] * 9,
    "bfloat16",
    "float16",
    "int32",
    "int32",
    "bool",
    "complex64",
    "uint8",
    "int8",
    "key",
)
_RARE_DTYPES = ("float8_e4m3fn", "float8_e5m2", "int4", "uint4", "uint32", "int16")
_WIDE_DTYPES = ("float64", "int64", "complex128", "uint64")
SLICES = ((1,), (1,), (2,), (2, 2), (4,))
_AXES = ("data", "model")
_SMOOTH = (
    "sin",
    "tanh",
    "double",
    "bias",
    "matmul",
    "add",
    "multiply",
    "constant",
    "softmax",
    "norm",
    "where",
)
_STATIC = ((2, 2.0), (1, True), (3,), ("a", "b"), (0, -0.0, False))
SCHEDULES = (
    "program",
    "gpipe",
    "1f1b",
    "eager",
    "interleaved-1f1b",
    "looped-bfs",
    "zb-h1",
    "zb-h2",
    "zb-v",
    "interleaved-zb",
    "1f1b(times=flops)",
    "zb-h1(max-live=2)",
    "zb-h2(times=flops, max-pending=1, recompute=true)",
    "search(iterations=30)",
    "search(iterations=30, max-live=2)",
    "search(iterations=30, max-bytes=256)",
)
_LEAVES = (1, 2, 3, 9, 40, 40, 200, 1000)
_MAX_DEVICES = 16
_NO_BACKWARD = ("while", "scan_rows")


def random_sketch(seed: int, number: int) -> Sketch:
    """Returns the sketch of a seed with a number."""
    rng = random.Random(f"{seed}/{number}")
    slices = tuple(rng.choice(SLICES) for _ in range(rng.choice([1, 2, 2, 3])))
    sketch = _pipeline(rng, slices) if rng.random() < 0.3 else _program(rng, slices)
    # Drawn last, so that programs without a loop stay the same.
    if rng.random() < 0.2:
        sketch = dataclasses.replace(sketch, outer_loop=rng.choice(list(OUTER_LOOPS)))
    return dataclasses.replace(
        sketch,
        pieces=tuple(_beside(rng, piece) if rng.random() < 0.12 else piece for piece in sketch.pieces),
        leaves=rng.choice(_LEAVES) if rng.random() < 0.08 else 0,
        ahead=sketch.threads == 1 and rng.random() < 0.15,
    )


def _beside(rng: random.Random, piece: Piece) -> Piece:
    return piece if piece.place is None else dataclasses.replace(piece, beside=rng.choice(list(REGIONS)))


def _program(rng: random.Random, slices: tuple[tuple[int, ...], ...]) -> Sketch:
    x64 = rng.random() < 0.1
    inputs = tuple(_input(rng, x64) for _ in range(rng.randint(1, 4)))
    pieces: list[Piece] = []
    count = len(inputs)
    for _ in range(rng.randint(1, 5)):
        place = rng.randrange(len(slices)) if rng.random() < 0.75 else None
        operands = tuple(rng.randrange(count) for _ in range(rng.randint(1, 3)))
        if rng.random() < 0.6:
            operands = (count - 1, *operands[1:])
        pieces.append(random_piece(rng, slices, place, operands))
        count += results_of(pieces[-1])
    if all(piece.place is None for piece in pieces):
        pieces.append(random_piece(rng, slices, 0, (count - 1,)))
        count += results_of(pieces[-1])
    results = (*(rng.randrange(count) for _ in range(rng.choice([0, 1, 1, 2]))), count - 1)
    threads = rng.choice([1] * 9 + [3])
    whole = ("grad", "value_and_grad", "jvp", "vjp", "vmap", "checkpoint", "jit", "custom_vjp")
    return Sketch(
        slices,
        inputs,
        tuple(pieces),
        results,
        x64=x64,
        overlap=rng.random() < 0.15,
        nesting=rng.choice([0, 0, 1, 2, 3]),
        transform=rng.choice(whole) if rng.random() < 0.45 else "",
        static=rng.choice(_STATIC[:3]) if threads == 1 and rng.random() < 0.08 else (),
        fuse=rng.random() < 0.2,
        calls=rng.choice([1, 1, 2]),
        threads=threads,
        under_mesh=rng.random() < 0.04,
        replicas=replicas_for(rng, slices, 0.1),
    )


def _pipeline(rng: random.Random, slices: tuple[tuple[int, ...], ...]) -> Sketch:
    count = rng.choice([1, 2, 2, 4])
    inputs = [_parameter(rng) for _ in range(rng.randint(1, 3))]
    shared = len(inputs)
    for _ in range(rng.choice([1, 1, 2])):
        dtype = rng.choice(["float32"] * 6 + ["int32", "bfloat16", "complex64", "key"])
        rows = rng.choice([1, 2, 2, 4, 0] if rng.random() < 0.3 else [2, 4])
        inputs.append(Input((rows, *rng.choice([(), (4,), (8,)])), dtype, cut=True))
    values = len(inputs)
    pieces: list[Piece] = []
    last = shared
    stages = rng.randint(1, 4)
    folded = rng.random() < 0.25
    if folded:
        stages = 2 * len(slices)
    for n in range(stages):
        # Stages alternate over the slices, or go down and up again.
        place: int | None = min(n, stages - 1 - n) if folded else n % len(slices)
        if rng.random() < 0.12 and not folded:
            place = None
        operands: tuple[int, ...] = (last, rng.randrange(shared))
        if rng.random() < 0.25:
            operands = (*operands, rng.randrange(values))
        smooth = rng.random() < 0.7
        piece = random_piece(rng, slices, place, operands, smooth=smooth)
        pieces.append(dataclasses.replace(piece, stage=n) if folded else piece)
        last = values + results_of(pieces[-1]) - 1
        values = last + 1
    results = (*(rng.randrange(shared, values) for _ in range(rng.choice([0, 0, 1, 2]))), last)
    reduce = tuple(rng.choice(["mean", "sum", "concat"]) for _ in results)
    loop = MicrobatchLoop(count, rng.choice(SCHEDULES), reduce, rng.random() < 0.6)
    donated = rng.random() < 0.4
    inputs = [_donated(each) if donated and not each.cut else each for each in inputs]
    return Sketch(
        slices,
        tuple(inputs),
        tuple(pieces),
        results,
        overlap=rng.random() < 0.1,
        loop=loop,
        fuse=rng.random() < 0.2,
        calls=rng.choice([1, 2]),
        threads=rng.choice([1] * 14 + [2]),
        # A number that does not divide the microbatches is rejected.
        replicas=replicas_for(rng, slices, 0.4 if count > 1 else 0.05),
    )


def replicas_for(rng: random.Random, slices: tuple[tuple[int, ...], ...], share: float) -> int:
    """Returns a number of replicas for which there are devices."""
    wanted = rng.choice([2, 2, 2, 4]) if rng.random() < share else 1
    return wanted if wanted * sum(map(math.prod, slices)) <= _MAX_DEVICES else 1


def _donated(each: Input) -> Input:
    return Input(each.shape, each.dtype, each.form, donated=True, cut=each.cut)


def _parameter(rng: random.Random) -> Input:
    dtype = rng.choice(["float32"] * 8 + ["bfloat16", "complex64", "int32"])
    return Input(rng.choice([(4, 4), (8,), (4,), (), (8, 4)]), dtype)


def _input(rng: random.Random, x64: bool) -> Input:
    dtype = rng.choice(_RARE_DTYPES if rng.random() < 0.08 else _DTYPES)
    if x64 and rng.random() < 0.6:
        dtype = rng.choice(_WIDE_DTYPES)
    shape = rng.choice(_SHAPES)
    form = "array" if dtype == "key" else rng.choice(["array"] * 6 + ["numpy"])
    if dtype in ("float32", "int32", "bool", "complex64") and rng.random() < 0.06:
        shape, form = (), "python"
    donated = form == "array" and rng.random() < 0.2
    spec = _spec(rng, shape) if rng.random() < 0.1 and form != "python" else None
    return Input(shape, dtype, form, donated, spec=spec)


def _spec(rng: random.Random, shape: tuple[int, ...]) -> Spec:
    dims: list[str | None] = [None] * len(shape)
    if dims and rng.random() < 0.8:
        dims[rng.randrange(len(dims))] = rng.choice(_AXES) if rng.random() < 0.3 else "data"
    return tuple(dims)


def random_piece(
    rng: random.Random,
    slices: tuple[tuple[int, ...], ...],
    place: int | None,
    operands: tuple[int, ...],
    smooth: bool = False,
) -> Piece:
    """Returns a piece on a slice; a smooth one has a gradient."""
    applies = tuple(_apply(rng, place, smooth) for _ in range(rng.choice([1, 1, 2, 3])))
    results = min(rng.choice([1, 1, 1, 2]), len(applies))
    inside: list[str] = [rng.choice(list(TRANSFORMS))] if rng.random() < 0.25 else []
    around: list[str] = []
    if rng.random() < 0.2:
        around.append(
            rng.choice(["checkpoint", "jit", "vmap", "grad", "jvp", "vjp", "custom_vjp", "custom_jvp"])
        )
    if rng.random() < 0.03:
        around.append(rng.choice(["scan", "cond", "while", "fori", "map", "switch"]))
    in_specs = None
    out_spec: Spec | None = None
    if place is not None and len(slices[place]) + slices[place][0] > 2 and not inside:
        axes = _AXES[: len(slices[place])]
        choice = [None, None, (), (axes[0],), (axes[-1],), (None, axes[0])]
        if rng.random() < 0.35:
            in_specs = tuple(rng.choice(choice) for _ in operands)
        if rng.random() < 0.2:
            out_spec = rng.choice([(), (), (axes[0],)])
    if smooth:
        inside = [name for name in inside if name not in _NO_BACKWARD]
        around = [name for name in around if name in ("checkpoint", "jit", "custom_vjp", "custom_jvp")]
    return Piece(
        place,
        operands,
        applies,
        results,
        tuple(inside),
        tuple(around),
        in_specs,
        out_spec,
        unfit=rng.random() < 0.05,
        static=rng.choice(_STATIC)
        if place is not None and not (in_specs or out_spec is not None) and rng.random() < 0.05
        else (),
        nested=rng.random() < 0.07,
        tree=in_specs is None and rng.random() < 0.2,
    )


def _apply(rng: random.Random, place: int | None, smooth: bool) -> Apply:
    op: Any = rng.choice(_SMOOTH) if smooth or rng.random() < 0.3 else rng.choice([*OPERATIONS, "constrain"])
    if place is not None and rng.random() < 0.1:
        op = "constrain"
    wraps: tuple[str, ...] = ()
    if rng.random() < 0.12 and not smooth:
        wraps = (rng.choice(list(TRANSFORMS)),)
    return Apply(op, (rng.choice([-1, -1, -1, -2, -3]), rng.choice([-2, -1, -3])), rng.randrange(16), wraps)

"""Verdicts on sketches: each runs both ways, and the results or the errors are compared."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Harnesses run as scripts, without the paths of pytest.
sys.path.append(str(Path(__file__).parents[1] / "support"))

import jax
import jax.numpy as jnp
import numpy as np
from corpus import ROOT
from nodes import strangers
from operations import plain
from sketched import Maker, OnMesh, Placed, Plain, Sketched, build, mesh_like, values_of
from sketches import Ref, Sketch
from updates import ELEMENTWISE, MIXING, TO_SCALARS

import pathways as pw
from pathways.runtime.hosts.protocol.shards import shard_indices

PACKAGE_FOLDERS = ("compiler", "dialect", "passes", "runtime")


@dataclasses.dataclass(frozen=True)
class ProgramVerdict:
    """Verdict on a program.

    Attributes:
      kind: `ok`; `refused`, `both refuse`; `more`: accepted although JAX rejects it; `unstable`: other
        rounding changes it as much; `both wrong`: JAX on a mesh is wrong, too; failures are `wrong`,
        `traceback`, `crash`, `hang`.
      bucket: a text that failures of one cause share.
      message: details.
    """

    kind: str
    bucket: str = ""
    message: str = ""


def judge(sketch: Sketch, hosts: int = 0) -> ProgramVerdict:
    """Runs a sketch both ways: over hosts that are connected, or, without any, in this process alone."""
    with jax.enable_x64(sketch.x64):
        expected, refusal = _attempt(lambda: _run(Plain(), sketch, values_of(sketch), 1))
        results, error = _attempt(lambda: _run_placed(sketch, hosts))
        if error is not None:
            return _judge_error(sketch, error, refusal, hosts)
        if refusal is not None:
            return ProgramVerdict("more", type(refusal).__name__, str(refusal)[:200])
        # A worker may crash after its results are ready, before they are read.
        differences, error = _attempt(lambda: [_difference(each, expected, sketch) for each in results])
        if error is not None:
            return _judge_error(sketch, error, None, hosts)
        for difference in filter(None, differences):
            return _judge_difference(sketch, expected, difference, hosts)
        return _judge_bits(sketch, results, hosts)


def run_plain(sketch: Sketch, place: int | None = None) -> list[Any]:
    """Returns the results of `jax.jit` alone, on one device or over a mesh like that of a slice."""
    with jax.enable_x64(sketch.x64):
        if place is None:
            return _run(Plain(), sketch, values_of(sketch), 1)
        with jax.set_mesh(mesh_like(sketch.slices[place])):
            return _run(OnMesh(place), sketch, values_of(sketch), 1)


def _attempt(run: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return run(), None
    except Exception as error:
        return None, error


def _run(maker: Maker, sketch: Sketch, values: list[Any], calls: int) -> list[Any]:
    program = build(maker, sketch)
    if sketch.training is not None:
        return jax.block_until_ready([_train(program, sketch, values)])
    args, kwargs = program.arguments(values)
    results = []
    if sketch.ahead:
        return jax.block_until_ready(_ahead(program.fun, sketch, args, calls + 2))
    for n in range(calls):
        every = [program.fun(*_passed(program.fun, n, s, args), **kwargs) for s in _statics(sketch)]
        results.append(every if sketch.static else every[0])
    return jax.block_until_ready(results)


def _ahead(fun: Any, sketch: Sketch, args: tuple[Any, ...], calls: int) -> list[Any]:
    """Returns the results of a program that is compiled ahead of time, called with other weak types."""
    every = [fun.lower(*static, *args).compile() for static in _statics(sketch)]
    results = []
    for n in range(calls):
        given = jax.tree.map(lambda x, n=n: _of_weakness(x, n), _fresh(args))
        of_all = [compiled(*_fresh(given)) for compiled in every]
        results.append(of_all if sketch.static else of_all[0])
    return results


def _of_weakness(x: Any, n: int) -> Any:
    """Returns a number or scalar unchanged, as an array, as a weakly typed array, or as a Python number."""
    if jnp.shape(x) or not isinstance(x, bool | int | float | complex | jax.Array | np.ndarray):
        return x
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return x
    number = np.asarray(x).item()
    if jnp.asarray(number).dtype != jnp.asarray(x).dtype:
        return x
    return (x, jnp.asarray(number, jnp.asarray(x).dtype), jnp.asarray(number), number)[n % 4]


def _train(program: Sketched, sketch: Sketch, values: list[Any]) -> Any:
    """Returns the results of all steps, and the inputs after the last one: earlier ones may be donated."""
    assert sketch.training is not None
    kept = sorted(sketch.training.kept(sketch.inputs))
    every, last = [], []
    for n in range(sketch.training.steps):
        updated = dict(zip(kept, last, strict=bool(n)))
        given = [_fresh(x) if each.donated else x for each, x in zip(sketch.inputs, values, strict=True)]
        args, _ = program.arguments([updated.get(number, x) for number, x in enumerate(given)])
        if n % 2 and isinstance(program.fun, pw.Program):
            args = program.fun.place(*args)
        returned, last = program.fun(*args)
        every.append(returned)
    return every, last


def _statics(sketch: Sketch) -> list[tuple[Any, ...]]:
    return [(s,) for s in sketch.static] or [()]


def _passed(fun: Any, n: int, static: tuple[Any, ...], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the arguments of a call; every second call gets them on the slices that read them."""
    every = (*static, *_fresh(args))
    return fun.place(*every) if n % 2 else every


def _fresh(tree: Any) -> Any:
    """Returns copies of arrays, which may be donated."""
    return jax.tree.map(lambda x: jnp.copy(x) if isinstance(x, jax.Array) else x, tree)


def _run_placed(sketch: Sketch, hosts: int) -> list[Any]:
    """Returns all results of all calls in all threads."""
    maker, values = Placed(sketch, hosts), values_of(sketch)
    strangers.clear()
    results = _run_on(maker, sketch, values)
    if strangers:
        raise AssertionError(f"nodes of users are built of {', '.join(sorted(strangers))}")
    return results


def _run_on(maker: Placed, sketch: Sketch, values: list[Any]) -> list[Any]:
    with _under_mesh(sketch):
        if sketch.threads == 1:
            return _run(maker, sketch, values, sketch.calls)
        program = build(maker, sketch)
        args, kwargs = program.arguments(values)
        outcomes: list[tuple[Any, BaseException | None]] = []

        def call() -> Any:
            return jax.block_until_ready(program.fun(*_fresh(args), **kwargs))

        def work() -> None:
            with jax.enable_x64(sketch.x64):
                outcomes.append(_attempt(lambda: [call(), call()]))

        threads = [threading.Thread(target=work) for _ in range(sketch.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for _, error in outcomes:
            if error is not None:
                raise error
        return [result for results, _ in outcomes for result in results]


@contextlib.contextmanager
def _under_mesh(sketch: Sketch) -> Iterator[None]:
    if not sketch.under_mesh:
        yield
        return
    with jax.set_mesh(mesh_like((2,))):
        yield


REFUSALS = (
    r"does not divide",
    r"axis '\w+' is not in the mesh",
    r"the spec has \d+ dimensions, the array \d+",
    r"the program calls no placed function",
    r"has no mean in its own dtype; use reduce='sum'",
    r"cannot be summed; use reduce='concat'",
    r"is a scalar and cannot be concatenated",
    r"cannot be scheduled by '[^']+', which (needs|has) ",
    r"is not divisible by",
    r"microbatches, which is not divisible by \d+ replicas",
)
"""Patterns of errors that programs may have which `jax.jit` accepts."""


NO_CODE_ON_HOSTS = r"calls back into Python: .*, which workers on hosts cannot"
"""Pattern of the error that a program with a callback may have on hosts."""


CANNOT_BE_SPLIT = r"zero1 cannot split the update of arguments? "
"""Pattern of the error that updates which mix elements may have."""


def _eager_refuses(sketch: Sketch, error: BaseException) -> bool:
    with jax.disable_jit():
        _, refusal = _attempt(lambda: _run(Plain(), sketch, values_of(sketch), 1))
    return type(refusal) is type(error) and str(refusal)[:60] == str(error)[:60]


def _judge_error(
    sketch: Sketch, error: BaseException, refusal: BaseException | None, hosts: int
) -> ProgramVerdict:
    message = f"{type(error).__name__}: {error}"[:600]
    frame = frame_of(error)
    is_clear = isinstance(error, (pw.ProgramError, pw.ResourceError)) or (
        isinstance(error, (TypeError, ValueError, NotImplementedError)) and _raised_by_us(error)
    )
    if refusal is not None and (is_clear or type(error) is type(refusal)):
        return ProgramVerdict("both refuse", general(message), message)
    calls_back = any(apply.op == "callback" for piece in sketch.pieces for apply in piece.applies)
    refusals = (*REFUSALS, NO_CODE_ON_HOSTS) if hosts and calls_back else REFUSALS
    if sketch.training is not None and _mixes(sketch):
        refusals = (*refusals, CANNOT_BE_SPLIT)
    if is_clear and any(re.search(words, message) for words in refusals):
        return ProgramVerdict("refused", general(message), message)
    if _eager_refuses(sketch, error):
        # `jax.jit` drops the operation that raises the error, since its result is not needed.
        return ProgramVerdict("both refuse", general(message), message)
    place = f"{type(error).__name__} {frame}"
    trace = "".join(traceback.format_exception(error))[-3000:]
    return ProgramVerdict("traceback", f"{place} {general(str(error))}", f"{message}\n{trace}")


def general(text: str) -> str:
    """Returns a message without what differs from program to program."""
    text = re.sub(r"'[^']*'|@[\w:]+|\(/[^)]*\)|/\S+|\"[^\"]*\"|%\S+", "_", text.split("\n")[0])
    return re.sub(r"\[[\d,]*\]|#?\d+", "_", text)[:110]


def _frames(error: BaseException) -> list[tuple[str, int | None, str]]:
    frames = []
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in (*PACKAGE_FOLDERS, "test"):
            frames.append((str(path.relative_to(ROOT)), frame.lineno, frame.name))
        elif ".venv" in path.parts or "jax" in path.parts:
            frames.append(("jax", None, ""))
    return frames


def _raised_by_us(error: BaseException) -> bool:
    """Returns whether our code raised the error."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return _frames(error)[-1][0].startswith(PACKAGE_FOLDERS) and (last.line or "").startswith("raise ")


def frame_of(error: BaseException) -> str:
    """Returns the innermost frame of our code."""
    for file, line, name in reversed(_frames(error)):
        if file.startswith(PACKAGE_FOLDERS):
            return f"{file}:{line} {name}"
    return "?"


def _tolerance(sketch: Sketch, expected: Any) -> float:
    """Returns the tolerance for the coarsest dtype in the program, whose rounding affects later values."""
    program = build(Plain(), sketch)
    args, kwargs = program.arguments(values_of(sketch))
    static = sketch.static[:1]
    text = program.fun.lower(*static, *args, **kwargs).as_text()
    coarse = {"f8E": 0.6, "bf16": 0.06, "f16": 0.01}
    return max([bound for name, bound in coarse.items() if name in text], default=3e-4)


def _difference(result: Any, expected: list[Any], sketch: Sketch, bound: float = 2e-5) -> str:
    """Returns the difference between a result and the expected one; empty if they agree."""
    if jax.tree.structure(result) != jax.tree.structure(expected[0]):
        return f"structure {jax.tree.structure(result)} for {jax.tree.structure(expected[0])}"
    pairs = zip(jax.tree.leaves(result), jax.tree.leaves(expected[0]), strict=True)
    for n, (a, b) in enumerate(pairs):
        if type(a) in (int, float, bool) and type(a) is type(b) and a == b:
            continue
        of_a, of_b = _type_of(a), _type_of(b)
        if (of_a.shape, of_a.dtype) != (of_b.shape, of_b.dtype):
            return f"type of result {n}: {of_a} for {of_b}"
        if of_a.weak_type != of_b.weak_type:
            return f"weak type of result {n}: {of_a} for {of_b}"
        if not _shards_agree(a):
            return f"shards of result {n}: {a} over {a.sharding}"
        a, b = _numbers(a), _numbers(b)
        exact = not (a.dtype.kind in "fc" or "float" in str(a.dtype))
        a, b = (x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (a, b))
        finite = np.abs(b[np.isfinite(b)])
        slack = 0.0 if exact else bound * (1e-2 + (finite.max() if finite.size else 0.0))
        if not np.allclose(a, b, rtol=0.0 if exact else bound, atol=slack, equal_nan=True):
            return f"values of result {n}: {a.reshape(-1)[:6]} for {b.reshape(-1)[:6]}"
    return ""


def _numbers(x: Any) -> np.ndarray:
    """Returns the elements of an array or a number, and of keys, their data."""
    return x.fetch() if isinstance(x, pw.Array) else np.asarray(plain(jnp.asarray(x)))


def _type_of(x: Any) -> Any:
    return x.aval if isinstance(x, pw.Array) else jax.typeof(x)


def _shards_agree(x: Any) -> bool:
    """Returns whether every device holds its shard of an array; a read of the array sees one copy of each."""
    if isinstance(x, pw.Array):
        return _shards_on_hosts_agree(x)
    if not isinstance(x, jax.Array) or len(x.sharding.device_set) == 1:
        return True
    x = plain(x)
    whole = np.asarray(x)
    return all(np.asarray(s.data).tobytes() == whole[s.index].tobytes() for s in x.addressable_shards)


def _shards_on_hosts_agree(x: pw.Array) -> bool:
    """Returns whether all shards of an array on hosts equal a fetch of it."""
    fetched = x.fetch()
    for location, number in x.copies.items():
        whole = location.block.of(fetched)
        parts = shard_indices(whole.shape, location.placement)
        for host, positions in location.holders.items():
            wanted = [whole[parts[at]] for at in positions]
            sizes = [part.nbytes for part in wanted]
            request = x._controller.request_bytes(location, host.index, number, range(len(positions)), sizes)
            shards = x._controller.fetch(request)
            if any(bytes(s) != part.tobytes() for s, part in zip(shards, wanted, strict=True)):
                return False
    return True


def _judge_bits(sketch: Sketch, results: list[Any], hosts: int) -> ProgramVerdict:
    """Judges whether elementwise updates of blocks give the same bits as updates of whole arrays."""
    training = sketch.training
    if training is None or not training.zero1 or training.exchange_dtype is not None:
        return ProgramVerdict("ok")
    if any(each.op not in ELEMENTWISE for each in training.updates) or _mixes(sketch):
        return ProgramVerdict("ok")
    # XLA may contract products and sums depending on the shape if it widens 16 bits, such as in
    # `0.9 * v + 0.1 * g * g` of (24, 4) and of (12, 4), and if devices of a slice gather sums.
    narrow = any(each.dtype in ("bfloat16", "float16", "complex64") for each in sketch.inputs)
    if narrow or any(math.prod(shape) > 1 for shape in sketch.slices):
        return ProgramVerdict("ok")
    plain_sketch = dataclasses.replace(sketch, training=dataclasses.replace(training, zero1=False))
    (expected,) = _run_placed(plain_sketch, hosts)
    pairs = zip(jax.tree.leaves(results[0]), jax.tree.leaves(expected), strict=True)
    for n, (one, other) in enumerate(pairs):
        one, other = _numbers(one), _numbers(other)
        if one.tobytes() != other.tobytes():
            message = f"result {n}: {one.reshape(-1)[:6]} for {other.reshape(-1)[:6]}"
            return ProgramVerdict("wrong", "bits of zero1", message)
    return ProgramVerdict("ok")


def _mixes(sketch: Sketch) -> bool:
    """Returns whether an update may need a whole array: by its operation, or for operands of two shapes."""
    training = sketch.training
    assert training is not None
    shapes: list[Any] = []

    def shape_of(ref: Ref) -> Any:
        kind, n = ref
        if kind == "result":
            return None
        if kind == "update" and shapes:
            return shapes[n % len(shapes)]
        return sketch.inputs[n % len(sketch.inputs)].shape

    for each in training.updates:
        x, y = shape_of(each.x), shape_of(each.y)
        if each.op in MIXING or x is None or y not in ((), x):
            return True
        shapes.append(() if each.op in TO_SCALARS else x)
        if each.into is not None and shapes[-1] != sketch.inputs[each.into].shape:
            return True
    return False


def _judge_difference(sketch: Sketch, expected: list[Any], difference: str, hosts: int) -> ProgramVerdict:
    """Judges whether a difference is one of rounding, as in JAX's own results."""
    if not difference.startswith("values"):
        return ProgramVerdict("wrong", general(difference), difference)
    bound = _tolerance(sketch, expected)
    noises: tuple[float, ...] = (1e-7, 1e-6, 3e-6)
    if sketch.training is not None and sketch.training.exchange_dtype is not None:
        bound, noises = max(bound, 0.06), (*noises, 1e-3, 4e-3)
    single = dataclasses.replace(sketch, threads=1, calls=1)
    if not any(_difference(again, expected, sketch, bound) for again in _run_placed(single, hosts)):
        return ProgramVerdict("ok")
    for noise in noises:
        shaken, *_ = _run(Plain(), sketch, values_of(sketch, noise), 1)
        if _difference(shaken, expected, sketch, bound):
            return ProgramVerdict("unstable", "", difference)
    with jax.disable_jit():
        eager, error = _attempt(lambda: _run(Plain(), sketch, values_of(sketch), 1))
    if error is None and _difference(eager[0], expected, sketch, bound):
        return ProgramVerdict("unstable", "", difference)
    if any(_differs_on_mesh(sketch, n, expected, bound) for n in range(len(sketch.slices))):
        return ProgramVerdict("both wrong", "values", difference)
    return ProgramVerdict("wrong", "values", difference)


def _differs_on_mesh(sketch: Sketch, place: int, expected: list[Any], bound: float) -> bool:
    """Returns whether the constraints on one slice change what `jax.jit` computes on a mesh like it.

    XLA's partitioner is wrong then. It is for the gradient of the kernel of a convolution whose result is
    split along a spatial dimension by one axis of several: it sums over all devices.
    """
    with jax.set_mesh(mesh_like(sketch.slices[place])):
        results, error = _attempt(lambda: _run(OnMesh(place), sketch, values_of(sketch), 1))
    return error is None and _difference(results[0], expected, sketch, bound).startswith("values")

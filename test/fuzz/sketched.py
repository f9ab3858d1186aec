"""Functions of sketches: with `pw.jit` and `pw.program`, and with `jax.jit` alone."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from carries import STEPS
from inner_gradients import INNER
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from nodes import changed, node_of
from operations import operation, plain
from sketches import Input, Piece, Ref, Sketch, Spec, Update
from transforms import REGIONS, cotangents, tangents_or, total, wrapped
from updates import UPDATES, next_of

import pathways as pw

Function = Callable[..., Any]
AXES = ("data", "model")


def mesh_like(shape: tuple[int, ...]) -> jax.sharding.Mesh:
    """Returns a mesh of JAX like that of a slice."""
    kinds = (jax.sharding.AxisType.Auto,) * len(shape)
    return jax.make_mesh(shape, AXES[: len(shape)], axis_types=kinds)


class Plain:
    """Maker of the program of `jax.jit`: it places no function, and constraints are empty."""

    def constrain(self, piece: Piece, x: Any, spec: P) -> Any:
        # An empty constraint is kept: JAX treats it differently from no operation, such as in loops.
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh_like((1,)), P()))

    def place(self, piece: Piece, fun: Function) -> Function:
        if piece.place is None:
            return _glue(piece, fun)
        return jax.jit(fun, static_argnums=0) if piece.static else jax.jit(fun)

    def program(self, fun: Function, **options: Any) -> Function:
        return jax.jit(fun, static_argnums=options.get("static_argnums"))


class OnMesh(Plain):
    """Maker of the program of `jax.jit` over a mesh like one of the slices, for its constraints."""

    def __init__(self, place: int) -> None:
        self.chosen = place

    def constrain(self, piece: Piece, x: Any, spec: P) -> Any:
        return jax.lax.with_sharding_constraint(x, spec) if piece.place == self.chosen else x


class Placed:
    """Maker of the program of Pathways.

    Args:
      sketch: the program.
      hosts: the number of hosts of its slices; 0 for devices of this process.
    """

    def __init__(self, sketch: Sketch, hosts: int = 0) -> None:
        self.sketch = sketch
        devices = pw.make_virtual_device_set(replicas=sketch.replicas)
        self.slices = [
            devices.add_slice(
                shape,
                AXES[: len(shape)],
                island=f"island{n % hosts}" if hosts and sketch.replicas == 1 else None,
                overlap=sketch.overlap,
            )
            for n, shape in enumerate(sketch.slices)
        ]

    def constrain(self, piece: Piece, x: Any, spec: P) -> Any:
        return jax.lax.with_sharding_constraint(x, spec)

    def place(self, piece: Piece, fun: Function) -> Function:
        if piece.place is None:
            return _glue(piece, fun)
        options: dict[str, Any] = {"static_argnums": 0} if piece.static else {}
        chosen = self.slices[piece.place]
        put = functools.partial(pw.jit, fun, devices=chosen, stage=piece.stage, **options)
        if piece.in_specs is None and piece.out_spec is None:
            return put()

        # The shapes, which most specs must fit, are known only here.
        def call(*operands: Any) -> Any:
            specs: dict[str, Any] = {}
            if piece.in_specs is not None:
                pairs = zip(piece.in_specs, operands, strict=True)
                specs["in_shardings"] = tuple(_spec(spec, x, chosen, piece) for spec, x in pairs)
            if piece.out_spec is not None:
                results = jax.eval_shape(_computation(Plain(), piece, self.sketch), *operands)
                specs["out_shardings"] = jax.tree.map(
                    lambda r: _spec(piece.out_spec, r, chosen, piece), results
                )
            return put(**specs)(*operands)

        return call

    def program(self, fun: Function, **options: Any) -> Function:
        return pw.program(fun, **options)


Maker = Plain | Placed


def _glue(piece: Piece, fun: Function) -> Function:
    """Returns glue, for both programs alike: symbolic zero tangents depend on `jax.jit`."""
    return jax.jit(fun, static_argnums=0) if piece.static else fun


def _spec(spec: Spec | None, x: Any, chosen: pw.VirtualSlice, piece: Piece) -> P | None:
    """Returns a spec, if it fits an array or need not fit."""
    if spec is None:
        return None
    sizes = {None: 1, **dict(zip(chosen.axis_names, chosen.shape, strict=True))}
    shape = jnp.shape(x)
    fits = len(spec) <= len(shape) and all(shape[d] % sizes[axis] == 0 for d, axis in enumerate(spec))
    return P(*spec) if fits or piece.unfit else None


def _mesh_of(piece: Piece, sketch: Sketch) -> dict[str, int] | None:
    """Returns the axes of the slice of a piece."""
    return None if piece.place is None else dict(zip(AXES, sketch.slices[piece.place], strict=False))


def _computation(maker: Maker, piece: Piece, sketch: Sketch) -> Function:
    """Returns the computation of a piece, to be placed."""
    mesh, constrain = _mesh_of(piece, sketch), functools.partial(maker.constrain, piece)

    def compute(*values: Any) -> tuple[Any, ...]:
        known = list(values)
        for apply in piece.applies:
            x, y = (known[max(n, -len(known))] for n in apply.operands)
            f = operation(apply.op, mesh, constrain)
            one = wrapped(lambda x, y, f=f, n=apply.number: (f(x, y, n),), apply.wraps, apply.number)
            known.append(one(x, y)[0])
        return tuple(known[-piece.results :])

    inside = wrapped(compute, piece.inside, len(piece.applies))

    def body(*operands: Any) -> Any:
        return tuple(inside(*operands))[: piece.results]

    def body_of_tree(tree: Any) -> Any:
        return {"first": body(tree["x"], *tree["rest"][0]), "none": None}

    def with_static(static: Any, *operands: Any) -> Any:
        factor = len(static) if isinstance(static, str) else static
        return tuple(plain(r) * factor if plain(r).dtype != jnp.bool_ else r for r in body(*operands))

    return with_static if piece.static else body_of_tree if piece.tree else body


def _piece_function(maker: Maker, piece: Piece, sketch: Sketch) -> Function:
    """Returns a piece as a function of its operands that returns a list of arrays."""
    placed = maker.place(piece, _computation(maker, piece, sketch))
    called = placed
    if piece.tree and not piece.static:
        called = lambda x, *rest: placed({"x": x, "rest": (list(rest), None)})["first"]  # noqa: E731
    if piece.nested:
        called = maker.program(called, **({"static_argnums": 0} if piece.static else {}))

    def around(*operands: Any) -> list[Any]:
        calls = [functools.partial(called, s) for s in piece.static] or [called]
        every: list[Any] = []
        for call in calls:
            results = list(wrapped(call, piece.around, len(piece.applies))(*operands))
            if piece.beside:
                results += REGIONS[piece.beside](call, operands)
                results = results[::-1] if len(piece.applies) % 2 else results
            every += (results + results[-1:] * piece.results)[: piece.results]
        return every

    return around


def _body(maker: Maker, sketch: Sketch) -> Function:
    """Returns all pieces as a function of all inputs."""
    functions = [_piece_function(maker, piece, sketch) for piece in sketch.pieces]

    def body(*inputs: Any) -> tuple[Any, ...]:
        values = [jnp.asarray(x) if isinstance(x, (bool, int, float, complex)) else x for x in inputs]
        for piece, function in zip(sketch.pieces, functions, strict=True):
            values += function(*(values[n % len(values)] for n in piece.operands))
        return tuple(values[n % len(values)] for n in sketch.results)

    return body


def _split(body: Function, sketch: Sketch) -> tuple[Function, list[int]]:
    """Returns a body as a function of its smooth inputs and of all inputs."""
    smooth = [n for n, each in enumerate(sketch.inputs) if _is_smooth(each)]

    def of_smooth(chosen: list[Any], *inputs: Any) -> Any:
        every = list(inputs)
        for n, value in zip(smooth, chosen, strict=True):
            every[n] = value
        return body(*every)

    return of_smooth, smooth


def _is_smooth(each: Input) -> bool:
    return each.dtype.startswith(("float", "bfloat", "complex")) and not (each.cut or each.state)


def _transformed(body: Function, sketch: Sketch) -> Function:
    of_smooth, smooth = _split(body, sketch)
    match sketch.transform:
        case "":
            return body
        case "checkpoint" | "jit" | "custom_vjp":
            return wrapped(body, (sketch.transform,), 1)
        case "vmap":
            return lambda *xs: jax.vmap(body)(*(jnp.stack([x, x]) for x in map(jnp.asarray, xs)))

    def apply(*inputs: Any) -> Any:
        chosen = [jnp.asarray(inputs[n]) for n in smooth]
        if not chosen:
            return body(*inputs)
        bound = lambda c: of_smooth(c, *inputs)  # noqa: E731
        match sketch.transform:
            case "grad":
                return jax.grad(lambda c: total(bound(c)))(chosen)
            case "value_and_grad":
                loss = lambda c: (total(bound(c)), bound(c))  # noqa: E731
                return jax.value_and_grad(loss, has_aux=True)(chosen)
            case "jvp":
                return tangents_or(*jax.jvp(bound, (chosen,), ([jnp.ones_like(c) for c in chosen],)))
        results, pull = jax.vjp(bound, chosen)
        return pull(cotangents(results))

    return apply


def _looped(maker: Maker, body: Function, sketch: Sketch) -> Function:
    """Returns a body under `pw.accumulate`, a function of all inputs; some are split into microbatches."""
    loop = sketch.loop
    assert loop is not None
    of_smooth, smooth = _split(body, sketch)
    cut = tuple(n for n, each in enumerate(sketch.inputs) if each.cut)
    has_gradient = loop.gradient and bool(smooth)

    def fun(*inputs: Any, carried: Any = ()) -> Any:
        if not has_gradient:
            return _with_carried(sketch, body(*inputs), carried)
        of_chosen = lambda c: _with_carried(sketch, of_smooth(c, *inputs), carried)  # noqa: E731
        loss: Function = lambda c: (lambda r: (total(r[-1:]), r))(of_chosen(c))  # noqa: E731
        if loop.inner:
            loss = INNER[loop.inner](loss)
        results, gradients = jax.value_and_grad(loss, has_aux=True)([jnp.asarray(inputs[n]) for n in smooth])
        return results[1], gradients

    reduce: Any = (loop.reduce, "mean") if has_gradient else loop.reduce
    if not (loop.carries and cut):
        return pw.accumulate(fun, loop.count, reduce=reduce, batch_argnums=cut)
    steps = [_placed_or_glue(maker, STEPS[each.step], each.place, sketch) for each in loop.carries]

    def stateful(carried: Any, *inputs: Any) -> Any:
        results = fun(*inputs, carried=carried)
        mean = inputs[cut[0]].mean(0)
        size = jnp.tanh(total((results[0] if has_gradient else results)[-1:]))
        return [step(c, mean + size) for step, c in zip(steps, carried, strict=True)], results

    accumulated = pw.accumulate(
        stateful, loop.count, reduce=reduce, batch_argnums=tuple(n + 1 for n in cut), carry_argnums=0
    )

    def whole(*inputs: Any) -> Any:
        shape = sketch.inputs[cut[0]].shape[1:]
        start = jnp.tanh(total([inputs[0]])) + jnp.zeros(shape)
        carried, results = accumulated([start + n for n in range(len(steps))], *inputs)
        return ((*results[0], *carried), results[1]) if has_gradient else (*results, *carried)

    return whole


def _with_carried(sketch: Sketch, results: tuple[Any, ...], carried: Any) -> tuple[Any, ...]:
    """Returns the results of a body, where the last one depends on the carried values that are read."""
    assert sketch.loop is not None
    *rest, last = results
    for each, value in zip(sketch.loop.carries, carried, strict=False):
        if each.read and jnp.issubdtype(last.dtype, jnp.inexact):
            last = (last * (1 + 0.1 * jnp.tanh(value.mean()))).astype(last.dtype)
    return (*rest, last)


def _trained(maker: Maker, whole: Function, sketch: Sketch) -> Function:
    """Returns a step of training around a loop: a function of all inputs to results and next inputs."""
    training = sketch.training
    assert training is not None
    smooth = [n for n, each in enumerate(sketch.inputs) if _is_smooth(each)]
    placed = [
        _placed_or_glue(maker, functools.partial(_update, each), each.place, sketch)
        for each in training.updates
    ]

    def fun(*inputs: Any) -> Any:
        results, gradients = whole(*inputs) if smooth else (whole(*inputs), [])
        known = dict(zip(smooth, gradients, strict=True))
        updates: list[Any] = []

        def value(ref: Ref) -> Any:
            kind, n = ref
            if kind == "result":
                return results[n % len(results)]
            if kind == "update" and updates:
                return updates[n % len(updates)]
            n %= len(inputs)
            return known[n] if kind == "gradient" and n in known else inputs[n]

        for each, update in zip(training.updates, placed, strict=True):
            updates.append(update(value(each.x), value(each.y)))
        kept = training.kept(sketch.inputs)
        last = [next_of(updates[kept[n]], inputs[n]) for n in sorted(kept)]
        return (results, [value(ref) for ref in training.returned]), last

    return fun


def _update(each: Update, x: Any, y: Any) -> Any:
    return UPDATES[each.op](x, y, each.number)


def _placed_or_glue(maker: Maker, fun: Function, place: int | None, sketch: Sketch) -> Function:
    """Returns a function, on a slice if one is given."""
    if place is None or place >= len(sketch.slices):
        return fun
    return maker.place(Piece(place, (), ()), fun)


def _fori(body: Function, carry: Any, rows: Any) -> Any:
    return jax.lax.fori_loop(1, 4, lambda i, c: body(c, rows[0] * i)[0], carry)


def _scan(body: Function, carry: Any, rows: Any) -> Any:
    return jax.lax.scan(body, carry, rows)


def _reverse(body: Function, carry: Any, rows: Any) -> Any:
    return jax.lax.scan(body, carry, rows, reverse=True)


def _while(body: Function, carry: Any, rows: Any) -> Any:
    down = lambda s: (s[0] - 2, body(s[1], rows[1])[0])  # noqa: E731
    return jax.lax.while_loop(lambda s: s[0] > -2, down, (2, carry))


def _nested(body: Function, carry: Any, rows: Any) -> Any:
    return jax.lax.scan(lambda c, row: jax.lax.scan(body, c, row * rows[:2]), carry, rows)


OUTER_LOOPS = {"fori": _fori, "scan": _scan, "reverse": _reverse, "while": _while, "nested": _nested}


def _iterated(whole: Function, sketch: Sketch) -> Function:
    """Returns a function of all inputs, in a loop that changes the smooth ones and collects all results."""
    smooth = [n for n, each in enumerate(sketch.inputs) if _is_smooth(each)]

    def fun(*inputs: Any) -> Any:
        def body(carry: Any, row: Any) -> Any:
            size, chosen = carry
            every = list(inputs)
            for n, value in zip(smooth, chosen, strict=True):
                every[n] = value
            results = whole(*every)
            leaves = [x for x in jax.tree.leaves(results) if jnp.issubdtype(x.dtype, jnp.inexact)]
            size = jnp.sin(size + row + sum(jnp.abs(x).astype(jnp.float32).sum() for x in leaves))
            return (size, [(x * 0.5 + size).astype(x.dtype) for x in chosen]), results

        rows = jnp.arange(3, dtype=jnp.float32)
        return OUTER_LOOPS[sketch.outer_loop](
            body, (jnp.float32(0), [jnp.asarray(inputs[n]) for n in smooth]), rows
        )

    return fun


@dataclasses.dataclass(frozen=True)
class Sketched:
    """Program with the nesting of its arguments."""

    fun: Function
    arguments: Callable[[list[Any]], tuple[tuple[Any, ...], dict[str, Any]]]


def build(maker: Maker, sketch: Sketch) -> Sketched:
    """Returns the program of a sketch."""
    body = _body(maker, sketch)
    whole = _looped(maker, body, sketch) if sketch.loop is not None else _transformed(body, sketch)
    if sketch.training is not None:
        whole = _trained(maker, whole, sketch)
    if sketch.outer_loop:
        whole = _iterated(whole, sketch)
    donated = [n for n, each in enumerate(sketch.inputs) if each.donated]
    kept = [n for n, each in enumerate(sketch.inputs) if not each.donated]
    # Donated arguments come first, as one tree if arguments are nested.
    order = donated + kept

    def of_ordered(*values: Any) -> Any:
        inputs = [value for _, value in sorted(zip(order, values, strict=True))]
        return _in_trees(whole(*inputs), sketch.nesting)

    def nest(values: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        ordered = [values[n] for n in order]
        if not sketch.nesting:
            return tuple(ordered), {}
        first, rest = ordered[: len(donated)], ordered[len(donated) :]
        tree: Any = {"b": rest[:1], "a": (rest[1:], None)}
        return (first, tree), {}

    def of_nested(*arguments: Any) -> Any:
        if not sketch.nesting:
            return of_ordered(*arguments)
        first, tree = arguments
        return of_ordered(*first, *tree["b"], *tree["a"][0])

    count = len(donated) if not sketch.nesting else int(bool(donated))
    options: dict[str, Any] = {"fuse": sketch.fuse}
    if sketch.loop is not None:
        options["schedule"] = sketch.loop.schedule
    if sketch.training is not None:
        options |= {"zero1": sketch.training.zero1, "exchange_dtype": sketch.training.exchange_dtype}
    if any(each.spec is not None for each in sketch.inputs):
        specs = [None if each.spec is None else P(*each.spec) for each in sketch.inputs]
        options["in_shardings"] = nest(specs)[0]
    if sketch.leaves:
        of_nested, nest, options = _with_nodes(maker, sketch, of_nested, nest, options)
    if not sketch.static:
        return Sketched(maker.program(of_nested, donate_argnums=tuple(range(count)), **options), nest)

    def with_static(static: Any, *arguments: Any) -> Any:
        return jax.tree.map(lambda r: plain(r) * static, of_nested(*arguments)), static

    donate = tuple(range(1, count + 1))
    fun = maker.program(with_static, static_argnums=0, donate_argnums=donate, **options)
    return Sketched(fun, nest)


def _with_nodes(
    maker: Maker, sketch: Sketch, fun: Function, nest: Function, options: dict[str, Any]
) -> tuple[Function, Function, dict[str, Any]]:
    """Returns a program that also accepts and returns a tree of nodes of a registered class."""
    update = maker.place(Piece(0, (), ()), changed) if sketch.leaves % 2 else changed

    def of_both(*arguments: Any) -> Any:
        *rest, node = arguments
        return {"node": update(node), "others": fun(*rest)}

    def nest_both(values: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = nest(values)
        return (*args, node_of(sketch.leaves)), kwargs

    if "in_shardings" in options:
        options = {**options, "in_shardings": (*options["in_shardings"], None)}
    return of_both, nest_both, options


def _in_trees(results: Any, nesting: int) -> Any:
    match nesting:
        case 1:
            return {"z": results, "a": None}
        case 2:
            return [results, ()]
        case 3:
            return {"y": {"x": [results]}, "b": (results,)}
    return results


def values_of(sketch: Sketch, noise: float = 0.0) -> list[Any]:
    """Returns a value for each input, always the same; `noise` is relative."""
    rng = np.random.default_rng(0)
    return [_value(rng, each, sketch, noise) for each in sketch.inputs]


def _value(rng: np.random.Generator, each: Input, sketch: Sketch, noise: float) -> Any:
    shape = each.shape
    if each.cut and sketch.loop is not None:
        shape = (shape[0] * sketch.loop.count, *shape[1:]) if shape else (sketch.loop.count,)
    numbers = rng.normal(size=shape) * (1 + noise * rng.normal(size=shape))
    if each.dtype == "key":
        return jax.random.split(jax.random.key(1), shape) if shape else jax.random.key(2)
    if each.form == "python":
        return {
            "float32": float,
            "int32": lambda x: int(x * 5),
            "bool": lambda x: bool(x > 0),
            "complex64": complex,
        }[each.dtype](float(numbers))
    dtype = jnp.dtype(each.dtype)
    if each.dtype == "bool":
        array = numbers > 0
    elif each.dtype.startswith("complex"):
        array = (numbers + 1j * rng.normal(size=shape)).astype(dtype)
    elif "int" in each.dtype:
        array = np.round(np.abs(numbers) * 2 if "u" in each.dtype else numbers * 3).astype(dtype)
    else:
        array = numbers.astype(dtype)
    return array if each.form == "numpy" else jnp.asarray(array)

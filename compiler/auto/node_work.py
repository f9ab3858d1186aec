"""Work of the nodes of a loss, forward and backward, as `passes.analysis.work` counts it in StableHLO."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Sequence
from typing import Any

import jax

from pathways.compiler.auto.flat_loss import FlatLoss, Node, Variable, is_variable
from pathways.compiler.frontend import jax_internals

_FREE = frozenset(
    {
        "broadcast_in_dim",
        "copy",
        "copy_p",
        "expand_dims",
        "iota",
        "optimization_barrier",
        "reshape",
        "squeeze",
    }
    | {"stop_gradient", "empty", "empty2", "split", "pvary"}
)
"""Primitives that cost nothing in XLA."""

_PRODUCTS = frozenset({"dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general"})


class NodeWork:
    """Floating point operations of nodes; equal ones are counted once.

    Args:
      flat: the loss of the nodes.
    """

    def __init__(self, flat: FlatLoss) -> None:
        self._learned = flat.learned
        self._work: dict[Any, float] = {}
        self._params: dict[int, str] = {}

    def of(self, node: Node) -> float:
        """Returns the operations of a node for a microbatch, forward and backward."""
        key = self._key(node)
        if key not in self._work:
            self._work[key] = float(self._count(node))
        return self._work[key]

    def kinds(self, nodes: Sequence[Node]) -> tuple[int, ...]:
        """Returns a number for each node, equal for equal ones."""
        numbers: dict[Any, int] = {}
        return tuple(numbers.setdefault(self._key(node), len(numbers)) for node in nodes)

    def _key(self, node: Node) -> Any:
        """Returns the key that nodes of equal work share."""
        equation = node.equation
        if id(equation) not in self._params:
            self._params[id(equation)] = str(equation.params)
        operands = tuple(
            (str(a.aval), a in self._learned) if is_variable(a) else str(a.val) for a in node.operands
        )
        return equation.primitive.name, self._params[id(equation)], operands

    def _count(self, node: Node) -> int:
        forward = operations(node.equation, iterations=1)
        if not any(a in self._learned for a in node.operands if is_variable(a)):
            return forward
        if not any(v in self._learned for v in node.results):
            return forward
        try:
            return _differentiated(node, self._learned)
        except Exception:
            # The rule for differentiation would reject this; only the cost matters here.
            return 3 * forward


def _differentiated(node: Node, learned: Collection[Variable]) -> int:
    """Returns the operations of a node and of its backward."""
    variables = [a for a in node.operands if is_variable(a)]
    shapes = [_one_row(node, a) for a in node.operands if is_variable(a)]
    moving = [n for n, v in enumerate(variables) if v in learned]
    floats = [n for n, v in enumerate(node.results) if v in learned]
    params = node.equation.params if node.iteration is None else {**node.equation.params, "length": 1}

    def backward(values: list[Any], cotangents: list[Any]) -> Any:
        def forward(*moved: Any) -> list[Any]:
            full = list(values)
            for n, value in zip(moving, moved, strict=True):
                full[n] = value
            left = iter(full)
            operands = [next(left) if is_variable(a) else a.val for a in node.operands]
            results = jax_internals.bind(node.equation, operands, params)
            return [results[n] for n in floats]

        results, pull = jax.vjp(forward, *(values[n] for n in moving))
        return results, pull(cotangents)

    types = [node.results[n].aval for n in floats]
    closed = jax.make_jaxpr(backward)(shapes, [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in types])
    return count(jax_internals.without_dead_equations(closed).jaxpr)


def _one_row(node: Node, atom: Any) -> jax.ShapeDtypeStruct:
    aval = atom.aval
    shape = (1, *aval.shape[1:]) if any(atom is other for other in node.stacked) else aval.shape
    return jax.ShapeDtypeStruct(shape, aval.dtype)


def is_product(node: Node) -> bool:
    """Returns whether a node multiplies matrices or convolves."""
    return _has_product(node.equation)


def _has_product(equation: Any) -> bool:
    if equation.primitive.name in _PRODUCTS:
        return True
    return any(_has_product(e) for inner in jax_internals.jaxprs_within(equation) for e in inner.eqns)


def count(jaxpr: Any) -> int:
    """Returns the operations of a jaxpr."""
    return sum(operations(equation) for equation in jaxpr.eqns)


def operations(equation: Any, iterations: int | None = None) -> int:
    """Returns the operations of an equation; of a loop for some iterations, by default all."""
    name = equation.primitive.name
    if name in _FREE:
        return 0
    results = sum(_elements(v) for v in equation.outvars)
    match name:
        case "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            return 2 * results * math.prod(equation.invars[0].aval.shape[n] for n in contracted)
        case "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            outputs = kernel[equation.params["dimension_numbers"].rhs_spec[0]]
            return 2 * results * math.prod(kernel) // max(1, outputs)
        case "scan":
            (body,) = jax_internals.jaxprs_within(equation)
            return (equation.params["length"] if iterations is None else iterations) * count(body)
        case "cond":
            return max(map(count, jax_internals.jaxprs_within(equation)))
    inner = jax_internals.jaxprs_within(equation)
    if name.startswith(("reduce_", "scatter", "cum", "arg", "sort", "top_k", "select_and")):
        return max(results, sum(_elements(v) for v in equation.invars))
    if name in ("custom_jvp_call", "custom_vjp_call"):
        return count(inner[0])
    return sum(map(count, inner)) if inner else results


def _elements(atom: Any) -> int:
    with contextlib.suppress(AttributeError):
        return math.prod(atom.aval.shape)
    return 0

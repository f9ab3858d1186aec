"""Function of a stage: the nodes of a loss that run on one slice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from pathways.compiler.auto.flat_loss import FlatLoss, Node, Variable, is_variable
from pathways.compiler.auto.stage_bodies import NodeRun, Rows, StageBody
from pathways.compiler.frontend import jax_internals

Values = dict[Variable, Any]


def stage_function(
    flat: FlatLoss, body: StageBody, name: str
) -> Callable[[Sequence[Sequence[Any]], Sequence[Any]], tuple[Any, ...]]:
    """Returns a function from the blocks of a stage's parameters and the values that it receives to its
    results.

    Args:
      body: the contents of the stage.
    """

    def run(leaves: Sequence[Sequence[Any]], received: Sequence[Any]) -> tuple[Any, ...]:
        stage = _Stage(flat, body, leaves)
        stage.values.update(zip(body.reads, received, strict=True))
        for node in body.free:
            stage.run_node(node)
        for node_run in body.runs:
            stage.run(node_run)
        return tuple(stage.value(v) for v in body.results)

    run.__name__ = run.__qualname__ = name
    return run


class _Stage:
    """Values of a stage while it is traced."""

    def __init__(self, flat: FlatLoss, body: StageBody, leaves: Sequence[Sequence[Any]]) -> None:
        self.flat = flat
        self.values: Values = dict(flat.constants)
        self.leaves: dict[Variable, tuple[int, Any]] = {}
        for (number, rows), of_leaf in zip(body.leaves, leaves, strict=True):
            leaf = of_leaf[0] if len(of_leaf) == 1 else jnp.concatenate(of_leaf)
            self.leaves[flat.parameters[number]] = rows[0], leaf

    def value(self, atom: Any) -> Any:
        if not is_variable(atom):
            return atom.val
        return self.leaves[atom][1] if atom in self.leaves else self.values[atom]

    def run(self, run: NodeRun) -> None:
        if run.iterations is None:
            self.run_node(run.first)
            return
        node = run.first
        unstacked = [self.value(a) for a in node.operands[: len(node.operands) - len(node.stacked)]]
        stacked = [self.rows(a, node.rows(run.iterations)) for a in node.stacked]
        params = {**node.equation.params, "length": run.length}
        if not isinstance(params.get("unroll"), bool):
            params["unroll"] = max(1, min(params.get("unroll", 1), run.length))
        results = jax_internals.bind(node.equation, [*unstacked, *stacked], params)
        self.values.update(zip(run.last.results, results, strict=True))

    def run_node(self, node: Node) -> None:
        sliced = self.flat.slice_of_rows(node) if node.iteration is None else None
        if sliced is not None:
            self.values[node.results[0]] = self.rows(*sliced)
            return
        results = jax_internals.bind(node.equation, [self.value(a) for a in node.operands])
        self.values.update(zip(node.results, results, strict=True))

    def rows(self, atom: Any, rows: Rows) -> Any:
        """Returns some rows of a stacked value."""
        if atom in self.leaves:
            first, leaf = self.leaves[atom]
            return _slice(leaf, rows[0] - first, rows[1] - first)
        node = self.flat.by_rows(atom) if atom not in self.values else None
        if node is None:
            return _slice(self.value(atom), *rows)
        operands = [
            self.rows(a, rows) if is_variable(a) and a.aval.shape else self.value(a) for a in node.operands
        ]
        (result,) = jax_internals.bind(node.equation, operands)
        return result


def _slice(array: Any, first: int, end: int) -> Any:
    return array if (first, end) == (0, array.shape[0]) else lax.slice_in_dim(array, first, end)

"""Bodies of the stages of a cut loss: nodes, parameters, values that they receive and pass on."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from pathways.compiler.auto.flat_loss import FlatLoss, Node, Variable, is_variable

Rows = tuple[int, int]
"""Rows of a stacked parameter: the first, and the end."""


@dataclasses.dataclass(frozen=True)
class NodeRun:
    """Node, or iterations of a loop that follow each other in a stage.

    Attributes:
      first: the node, or the first iteration.
      last: the last iteration; the same node for other equations.
    """

    first: Node
    last: Node

    @property
    def iterations(self) -> tuple[int, int] | None:
        """The iterations, from the first to the end; None for other equations."""
        if self.first.iteration is None or self.last.iteration is None:
            return None
        return self.first.iteration, self.last.iteration + 1

    @property
    def length(self) -> int:
        """The number of iterations."""
        return 1 if self.iterations is None else self.iterations[1] - self.iterations[0]


@dataclasses.dataclass(frozen=True)
class StageBody:
    """Contents of a stage.

    Attributes:
      free: nodes that depend on no microbatch, which it computes itself.
      runs: its nodes, in the order in which they run.
      leaves: the numbers of the parameters that it reads, and the rows of each.
      reads: variables that it receives: microbatches, and results of earlier stages.
      results: variables that it passes on, or that the loss returns.
    """

    free: tuple[Node, ...]
    runs: tuple[NodeRun, ...]
    leaves: tuple[tuple[int, Rows], ...]
    reads: tuple[Variable, ...]
    results: tuple[Variable, ...]


def whole_rows(variable: Variable) -> Rows:
    """Returns all rows of a parameter; a scalar has one."""
    return 0, (variable.aval.shape or (1,))[0]


def stage_bodies(flat: FlatLoss, positions: Sequence[int]) -> list[StageBody]:
    """Returns the bodies of the stages of a loss that is cut before some of its nodes.

    Args:
      positions: the first node of each stage but the first.
    """
    edges = [0, *positions, len(flat.nodes)]
    bodies = [flat.nodes[a:b] for a, b in itertools.pairwise(edges)]
    stage_of = {v: n for n, nodes in enumerate(bodies) for node in nodes for v in node.results}
    inputs = set(flat.inputs)
    results = {atom for atom in flat.outputs if is_variable(atom)}
    readers = [_StageReads(flat, nodes) for nodes in bodies]
    # Results of the loss that no node produces belong to the last stage.
    readers[-1].read_all(v for v in flat.outputs if is_variable(v) and v not in stage_of)
    received: list[list[Variable]] = []
    for n, reader in enumerate(readers):
        received.append([v for v in reader.variables if v in inputs or stage_of.get(v, n) != n])
    needed = results | {v for reads in received for v in reads}
    last = len(bodies) - 1
    return [
        StageBody(
            free=tuple(node for node in flat.free if node in reader.free),
            runs=tuple(runs_of(nodes)),
            leaves=tuple(reader.leaves()),
            reads=tuple(received[n]),
            results=(
                *(v for node in nodes for v in node.results if v in needed),
                *(v for v in dict.fromkeys(_variables(flat)) if n == last and v not in stage_of),
            ),
        )
        for n, (nodes, reader) in enumerate(zip(bodies, readers, strict=True))
    ]


def _variables(flat: FlatLoss) -> list[Variable]:
    return [atom for atom in flat.outputs if is_variable(atom)]


def runs_of(nodes: Sequence[Node]) -> list[NodeRun]:
    """Returns nodes, with consecutive iterations as one."""
    runs: list[NodeRun] = []
    for node in nodes:
        before = runs[-1].last if runs else None
        if (
            before is not None
            and node.iteration
            and before.iteration is not None
            and before.equation is node.equation
        ):
            runs[-1] = NodeRun(runs[-1].first, node)
        else:
            runs.append(NodeRun(node, node))
    return runs


class _StageReads:
    """Values that the nodes of a stage read, directly or through free nodes."""

    def __init__(self, flat: FlatLoss, nodes: Sequence[Node]) -> None:
        self.flat = flat
        self.numbers = {leaf: n for n, leaf in enumerate(flat.parameters)}
        self.free: set[Node] = set()
        self.rows: dict[int, Rows] = {}
        self.variables: dict[Variable, None] = {}
        self.produced = {v for node in nodes for v in node.results}
        self.free_makers = {v: node for node in flat.free for v in node.results}
        for run in runs_of(nodes):
            # Further iterations read the same constants, and the values carried by the previous one.
            self.read_all(run.first.unstacked)
            if run.iterations is not None:
                for atom in run.first.stacked:
                    self.read_rows(atom, run.first.rows(run.iterations))

    def read_all(self, variables: object) -> None:
        pending = list(variables)  # type: ignore[call-overload]
        while pending:
            variable = pending.pop(0)
            node = self.free_makers.get(variable)
            if variable in self.numbers:
                self._add(variable, whole_rows(variable))
            elif node is not None:
                if node not in self.free:
                    self.free.add(node)
                    sliced = self.flat.slice_of_rows(node)
                    if sliced is None:
                        pending += node.reads
                    else:
                        self.read_rows(*sliced)
            elif variable not in self.produced and variable not in self.flat.constants:
                self.variables[variable] = None

    def read_rows(self, atom: object, rows: Rows) -> None:
        if not is_variable(atom):
            return
        if atom in self.numbers:
            self._add(atom, rows)
            return
        node = self.flat.by_rows(atom)
        if node is None:
            self.read_all([atom])
            return
        for operand in node.reads:
            if operand.aval.shape:
                self.read_rows(operand, rows)
            else:
                self.read_all([operand])

    def _add(self, leaf: Variable, rows: Rows) -> None:
        number = self.numbers[leaf]
        first, end = self.rows.get(number, rows)
        self.rows[number] = min(first, rows[0]), max(end, rows[1])

    def leaves(self) -> list[tuple[int, Rows]]:
        return sorted(self.rows.items())

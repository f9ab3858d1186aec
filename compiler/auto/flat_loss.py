"""Loss as a list of nodes: its jaxpr with calls inlined, and a node for each iteration of a loop over
layers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from jax.extend import core

from pathways.compiler.frontend import jax_internals
from pathways.compiler.frontend.trace_state import tracing
from pathways.compiler.lower.phases import ProgramError

Variable = Any
"""Variable of a jaxpr: an object equal to itself alone, with an `aval`."""

_INLINED = frozenset({"jit", "pjit", "closed_call", "core_call", "core_closed_call"})

_BY_ROWS = frozenset(
    {
        "abs", "add", "add_any", "convert_element_type", "copy", "copy_p", "cos", "div", "exp", "exp2", "log",
        "logistic", "max", "min", "mul", "neg", "integer_pow", "reduce_precision", "rsqrt", "sign", "sin",
        "sqrt", "square", "stop_gradient", "sub", "tanh",
    }
)  # fmt: skip
"""Elementwise primitives: rows of their results depend on the same rows of their operands."""


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """Equation, or one iteration of a loop over layers; a cut keeps it whole.

    Attributes:
      equation: the equation; all iterations of a loop share one.
      operands: variables and literals, in the order of the equation; for an iteration, the values carried by
        the previous iteration replace the initial ones.
      results: variables; for an iteration, its carried values.
      iteration: the number of the iteration, in the order of execution; None for other equations.
      scope: the name stack of the calls around it.
    """

    equation: Any
    operands: tuple[Any, ...]
    results: tuple[Variable, ...]
    iteration: int | None = None
    scope: str = ""

    @property
    def reads(self) -> tuple[Variable, ...]:
        """The variables among its operands."""
        return tuple(atom for atom in self.operands if is_variable(atom))

    @property
    def layer(self) -> str:
        """The user's layer of the equation, with the number of the iteration."""
        number = "" if self.iteration is None else f" [{self.iteration}]"
        return f"{jax_internals.layer_of(self.equation, self.scope)}{number}"

    @property
    def line(self) -> str:
        """The user's line of the equation."""
        return jax_internals.line_of(self.equation)

    @property
    def stacked(self) -> tuple[Any, ...]:
        """The operands that an iteration reads one row of; none for other equations."""
        if self.iteration is None:
            return ()
        constants, carried, _ = jax_internals.scan_operands(self.equation)
        return self.operands[constants + carried :]

    @property
    def unstacked(self) -> tuple[Variable, ...]:
        """The variables that it reads in full."""
        return tuple(a for a in self.operands[: len(self.operands) - len(self.stacked)] if is_variable(a))

    def rows(self, iterations: tuple[int, int]) -> tuple[int, int]:
        """Returns the rows of stacked operands that iterations of its loop read."""
        first, end = iterations
        length = self.equation.params["length"]
        return (length - end, length - first) if self.equation.params["reverse"] else (first, end)


@dataclasses.dataclass(frozen=True)
class FlatLoss:
    """Loss without calls in it.

    Attributes:
      nodes: the nodes that depend on a microbatch, in the order in which they run.
      free: the other nodes, in an order in which they can run: masks, tables, parameters that are cast. Each
        stage repeats the free nodes that it reads.
      parameters: a variable for each leaf of the first argument.
      inputs: a variable for each leaf of the others.
      constants: the values of arrays that it closes over.
      outputs: its results: variables and literals.
      learned: variables that depend on a parameter and can be differentiated.
      makers: the node that produces each variable.
    """

    name: str
    nodes: tuple[Node, ...]
    free: tuple[Node, ...]
    parameters: tuple[Variable, ...]
    inputs: tuple[Variable, ...]
    constants: Mapping[Variable, Any]
    outputs: tuple[Any, ...]
    learned: frozenset[Variable]
    makers: Mapping[Variable, Node]

    def leaf_by_rows(self, atom: Any) -> list[Variable]:
        """Returns the parameters that are needed for a row of a variable with one row only."""
        if atom in self.parameters_set:
            return [atom]
        node = self.by_rows(atom)
        return [] if node is None else [leaf for read in node.reads for leaf in self.leaf_by_rows(read)]

    def by_rows(self, atom: Any) -> Node | None:
        """Returns the free node of a variable, if its rows depend on the same rows of its operands."""
        node = self.makers.get(atom) if is_variable(atom) else None
        if node is None or node.equation.primitive.name not in _BY_ROWS or node.iteration is not None:
            return None
        fits = all(
            operand.aval.shape in ((), atom.aval.shape) if is_variable(operand) else not operand.aval.shape
            for operand in node.operands
        )
        return node if fits and atom.aval.shape else None

    def slice_of_rows(self, node: Node) -> tuple[Variable, tuple[int, int]] | None:
        """Returns the operand and the rows that a free node such as `w[3]` slices; None for other nodes."""
        params = node.equation.params
        if node.equation.primitive.name != "slice" or params["strides"] is not None:
            return None
        (stacked,) = node.operands
        if params["start_indices"][1:] != (0,) * (len(stacked.aval.shape) - 1):
            return None
        if params["limit_indices"][1:] != stacked.aval.shape[1:] or not self.leaf_by_rows(stacked):
            return None
        return stacked, (params["start_indices"][0], params["limit_indices"][0])

    @functools.cached_property
    def operations(self) -> list[tuple[str, int | None]]:
        """The operation of each node, and its iteration."""
        return [(node.equation.primitive.name, node.iteration) for node in self.nodes]

    @functools.cached_property
    def parameters_set(self) -> frozenset[Variable]:
        """The parameters."""
        return frozenset(self.parameters)


def is_variable(atom: Any) -> bool:
    """Returns whether an operand is a variable, not a literal."""
    return not isinstance(atom, core.Literal)


def flatten_loss(loss: Callable[..., Any], args: tuple[Any, ...], name: str) -> tuple[FlatLoss, Any]:
    """Traces a loss anew and flattens it to nodes; also returns the types of its results, in their structure.

    Args:
      loss: the function.
      args: the types of its arguments; the first are parameters.
      name: its name in messages.

    Raises:
      ProgramError: the loss has effects, or calls a placed function.
    """
    # A placed call in the loss is then recognised as one. Under `disable_jit` loops over layers are unrolled.
    with tracing(name), jax.disable_jit(False):
        # A new function, because JAX reuses the trace of an earlier one.
        closed, shapes = jax.make_jaxpr(lambda *args: loss(*args), return_shape=True)(*args)
    for metadata in jax_internals.metadata_of_calls(closed.jaxpr):
        callee = (
            "pw.accumulate" if "pw.slice" not in metadata else f"'{metadata.get('pw.name', '?')}', placed"
        )
        _refuse(name, callee, closed)
    if closed.effects:
        line = next((_place_of(e) for e in closed.jaxpr.eqns if e.effects), "")
        effects = ", ".join(sorted(map(str, closed.effects)))
        raise ProgramError(
            f"pw.auto of '{name}': it has effects ({effects}){line}, which nothing orders between stages: "
            "take them out of the loss"
        )
    needed = jax_internals.without_dead_equations(closed)
    count = len(jax.tree.leaves(args[0]))
    return _LossFlattener(name, needed, count).flat(), shapes


def _refuse(name: str, callee: str, closed: Any) -> None:
    call = next((e for e in closed.jaxpr.eqns if "xla_metadata" in e.params), None)
    at = _place_of(call) if call is not None else ""
    raise ProgramError(
        f"pw.auto of '{name}': {callee}, is called in it{at}: pw.auto takes plain JAX and places all of it"
    )


def _place_of(equation: Any) -> str:
    line = jax_internals.line_of(equation)
    return f" at {line}" if line else ""


class _LossFlattener:
    """Flattener of a jaxpr: inlines calls, and sorts equations by their dependence on microbatches."""

    def __init__(self, name: str, closed: Any, parameters: int) -> None:
        self.name = name
        jaxpr = closed.jaxpr
        self.parameters = tuple(jaxpr.invars[:parameters])
        self.inputs = tuple(jaxpr.invars[parameters:])
        self.constants = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        self.micro: set[Variable] = set(self.inputs)
        self.learned: set[Variable] = {v for v in self.parameters if _is_float(v)}
        self.nodes: list[Node] = []
        self.free: list[Node] = []
        self.jaxpr = jaxpr

    def flat(self) -> FlatLoss:
        names = {v: v for v in (*self.jaxpr.invars, *self.jaxpr.constvars)}
        outputs = tuple(self._inline(self.jaxpr, names))
        nodes = tuple(_late(self.nodes, self.learned))
        makers = {v: node for node in (*nodes, *self.free) for v in node.results}
        return FlatLoss(
            self.name,
            nodes,
            tuple(self.free),
            self.parameters,
            self.inputs,
            self.constants,
            outputs,
            frozenset(self.learned),
            makers,
        )

    def _inline(self, jaxpr: Any, names: dict[Variable, Any], scope: str = "") -> list[Any]:
        """Adds the equations of a jaxpr; returns the atoms of its results.

        Args:
          names: the atoms of its variables, initially of its inputs.
          scope: the name stack of the calls around it.
        """

        def named(atom: Any) -> Any:
            return names[atom] if is_variable(atom) else atom

        for equation in jaxpr.eqns:
            operands = tuple(map(named, equation.invars))
            inner = self._called(equation)
            if inner is not None:
                closed = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
                constants = [self._constant(value) for value in getattr(closed, "consts", ())]
                pairs = zip((*inner.constvars, *inner.invars), (*constants, *operands), strict=True)
                within = filter(None, (scope, str(equation.source_info.name_stack)))
                results = self._inline(inner, dict(pairs), "/".join(within))
                names.update(zip(equation.outvars, results, strict=True))
                continue
            # Fresh ones, because a jaxpr that is called twice is inlined twice.
            results = [jax_internals.fresh_variable(v.aval) for v in equation.outvars]
            names.update(zip(equation.outvars, results, strict=True))
            self._add(equation, operands, tuple(results), scope)
        return list(map(named, jaxpr.outvars))

    def _called(self, equation: Any) -> Any:
        if equation.primitive.name not in _INLINED:
            return None
        (inner,) = jax_internals.jaxprs_within(equation)
        return inner

    def _constant(self, value: Any) -> Variable:
        variable = jax_internals.fresh_variable(jax.typeof(value))
        self.constants[variable] = value
        return variable

    def _add(
        self, equation: Any, operands: tuple[Any, ...], results: tuple[Variable, ...], scope: str
    ) -> None:
        reads = [atom for atom in operands if is_variable(atom)]
        depends = any(v in self.micro for v in reads)
        if any(v in self.learned for v in reads):
            self.learned.update(v for v in results if _is_float(v))
        if not depends:
            self.free.append(Node(equation, operands, results))
            return
        self.micro.update(results)
        if not self._is_over_layers(equation, operands):
            self.nodes.append(Node(equation, operands, results, scope=scope))
            return
        constants, carried, _ = jax_internals.scan_operands(equation)
        length = equation.params["length"]
        carry = operands[constants : constants + carried]
        for iteration in range(length):
            last = iteration == length - 1
            handed = results if last else [jax_internals.fresh_variable(v.aval) for v in results]
            self.micro.update(handed)
            # The equation decided which of its results are learned; an iteration carries the same ones.
            self.learned.update(new for new, old in zip(handed, results, strict=True) if old in self.learned)
            inputs = (*operands[:constants], *carry, *operands[constants + carried :])
            self.nodes.append(Node(equation, inputs, tuple(handed), iteration, scope))
            carry = tuple(handed)

    def _is_over_layers(self, equation: Any, operands: Sequence[Any]) -> bool:
        """Returns whether an equation is a loop over layers, which carries all results and cuts no batch."""
        if equation.primitive.name != "scan" or equation.params["length"] < 2:
            return False
        constants, carried, _ = jax_internals.scan_operands(equation)
        stacked = operands[constants + carried :]
        learned = any(is_variable(v) and v in self.learned for v in stacked)
        return (
            len(equation.outvars) == carried
            and learned
            and not any(v in self.micro for v in _variables(stacked))
        )


def _variables(atoms: Iterable[Any]) -> list[Variable]:
    return [atom for atom in atoms if is_variable(atom)]


def _is_float(variable: Variable) -> bool:
    return bool(jax.dtypes.issubdtype(variable.aval.dtype, jax.numpy.inexact))


def _late(nodes: Sequence[Node], learned: Iterable[Variable]) -> list[Node]:
    """Returns the nodes; nodes without a parameter (targets, masks) stand right before their first reader."""
    trained = set(learned)
    makers = {v: node for node in nodes for v in node.results}
    moves = {n for n in nodes if not any(v in trained for v in (*n.reads, *n.results))}
    placed: set[int] = set()
    ordered: list[Node] = []

    def place(node: Node) -> None:
        # Without recursion: chains of such nodes may be longer than its limit.
        pending = [node]
        while pending:
            last = pending[-1]
            missing = [
                makers[v]
                for v in last.reads
                if v in makers and makers[v] in moves and id(makers[v]) not in placed
            ]
            if missing:
                pending += missing
                continue
            pending.pop()
            if id(last) not in placed:
                placed.add(id(last))
                ordered.append(last)

    for node in nodes:
        if node not in moves:
            place(node)
    # No learned value reads it: it is a result alone.
    for node in nodes:
        place(node)
    return ordered

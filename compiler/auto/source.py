"""Source code of a cut loss: Python that creates its stages with `pw.jit`, operation by operation."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from pathways.compiler.auto.cut_loss import CutLoss
from pathways.compiler.auto.flat_loss import FlatLoss, Node, Variable, is_variable
from pathways.compiler.auto.stage_bodies import NodeRun, Rows, StageBody
from pathways.compiler.frontend import jax_internals
from pathways.compiler.lower.phases import ProgramError

_HEAD = '''\
"""The loss '{name}', cut into {count} stages by pw.auto."""

import functools

import jax
import jax.numpy as jnp
import pathways as pw
from jax import lax
from jax.extend.core import primitives


def cut_loss({slices}, constants=()):
    """The loss of parameters as in plan.params and a microbatch; constants are plan.constants."""

'''


def source_of(loss: CutLoss) -> str:
    """Returns Python code with a function `cut_loss` of the slices, which returns the loss.

    Raises:
      ProgramError: an operation cannot be written; names it and its line.
    """
    flat = loss.flat
    slices = dict.fromkeys(loss.slices)
    names = {slice: f"slice{n}" for n, slice in enumerate(slices)}
    text = [_HEAD.format(name=flat.name, count=len(loss.bodies), slices=", ".join(names.values()))]
    for n, (body, slice, name) in enumerate(zip(loss.bodies, loss.slices, loss.names, strict=True)):
        lines = [f"@functools.partial(pw.jit, devices={names[slice]}, stage={n})"]
        lines += [f"def {name}(leaves, received):", *_indented(_StageSource(flat, body).lines())]
        text += [*_indented(lines), ""]
    text += _indented([*_loss_lines(loss), "", "return loss"])
    return "\n".join(line.rstrip() for line in text) + "\n"


def _loss_lines(loss: CutLoss) -> list[str]:
    """Returns the function that calls the stages."""
    flat = loss.flat
    names: dict[Variable, str] = {v: f"inputs[{n}]" for n, v in enumerate(flat.inputs)}
    lines = ["leaves = jax.tree.leaves(params)", "inputs = jax.tree.leaves(args)"]
    for n, (body, name) in enumerate(zip(loss.bodies, loss.names, strict=True)):
        blocks = [
            f"[{', '.join(f'leaves[{k}]' for k in loss.blocks.numbers(leaf, rows))}]"
            for leaf, rows in body.leaves
        ]
        reads = ", ".join(names[v] for v in body.reads)
        lines.append(f"results{n} = {name}([{', '.join(blocks)}], [{reads}])")
        names.update({v: f"results{n}[{k}]" for k, v in enumerate(body.results)})
    results = [_Text(names[a] if is_variable(a) else _literal(a)) for a in flat.outputs]
    return [
        "def loss(params, *args):",
        *_indented([*lines, f"return {loss.out_structure.unflatten(results)!r}"]),
    ]


class _Text(str):
    """Name, written without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" if line else line for line in lines]


class _BodySource:
    """Lines of a function, and the names of its values."""

    def __init__(self, names: dict[Variable, str], count: list[int]) -> None:
        self.names = names
        # A list of one number, which nested functions share: each name occurs once in the source of a stage.
        self.count = count
        self.lines_: list[str] = []
        self.line = ""

    def fresh(self) -> str:
        """Returns a new name."""
        self.count[0] += 1
        return f"v{self.count[0]}"

    def text(self, atom: Any) -> str:
        return self.names[atom] if is_variable(atom) else _literal(atom)

    def equation(self, equation: Any, operands: Sequence[str], results: Sequence[Any]) -> None:
        """Writes an equation for operands."""
        line = jax_internals.line_of(equation)
        if line and line != self.line:
            self.lines_.append(f"# {line}")
            self.line = line
        call = self.call(equation, list(operands))
        names = [self.fresh() for _ in results]
        self.names.update(zip(results, names, strict=True))
        is_tuple = equation.primitive.multiple_results
        self.lines_.append(f"{', '.join(names)}{',' if is_tuple and len(names) == 1 else ''} = {call}")

    def call(self, equation: Any, operands: list[str], length: int | None = None) -> str:
        """Returns the expression of an equation."""
        name, params = equation.primitive.name, equation.params
        arguments = ", ".join(operands)
        match name:
            case "scan":
                return self.scan(equation, operands, params["length"] if length is None else length)
            case "remat" | "remat2" | "checkpoint":
                if params["policy"] is not None:
                    raise _refusal(equation, "its policy has no name")
                body = self.function(params["jaxpr"])
                return f"jax.checkpoint({body}, prevent_cse={params['prevent_cse']})({arguments})"
            case "cond":
                branches = ", ".join(map(self.function, params["branches"]))
                return f"lax.switch({', '.join([operands[0], f'[{branches}]', *operands[1:]])})"
            case "jit" | "pjit" | "closed_call":
                return f"{self.function(params.get('jaxpr') or params['call_jaxpr'])}({arguments})"
            case "custom_jvp_call" if _activation(equation):
                return f"(jax.nn.{_activation(equation)}({arguments}),)"
        if jax_internals.jaxprs_within(equation) or any(map(callable, _values(params))):
            raise _refusal(equation, "it has a custom rule or function")
        try:
            options = [f"{key}={_written(value)}" for key, value in params.items()]
        except ValueError as error:
            raise _refusal(equation, str(error)) from None
        # The public function may reject parameters of its primitive.
        if not params and callable(getattr(jax.lax, name, None)):
            return f"lax.{name}({arguments})"
        if not hasattr(jax.extend.core.primitives, f"{name}_p"):
            raise _refusal(equation, "it is not public")
        return f"primitives.{name}_p.bind({', '.join([*operands, *options])})"

    def scan(self, equation: Any, operands: Sequence[str], length: int) -> str:
        """Returns a call of `lax.scan`, whose constants the body closes over."""
        params = equation.params
        constants, carried, _ = jax_internals.scan_operands(equation)
        (inner,) = jax_internals.jaxprs_within(equation)
        body, carry, row = self.fresh(), self.fresh(), self.fresh()
        names = dict(zip(inner.invars[:constants], operands[:constants], strict=True))
        names |= {v: f"{carry}[{n}]" for n, v in enumerate(inner.invars[constants : constants + carried])}
        names |= {v: f"{row}[{n}]" for n, v in enumerate(inner.invars[constants + carried :])}
        nested = self.nested(inner, names, params["jaxpr"])
        handed = [nested.text(v) for v in inner.outvars]
        results = f"return {_tuple(handed[:carried])}, {_tuple(handed[carried:])}"
        self.lines_ += [f"def {body}({carry}, {row}):", *_indented([*nested.lines_, results])]
        unroll = params["unroll"] if isinstance(params["unroll"], bool) else min(params["unroll"], length)
        carry_in = _tuple(operands[constants : constants + carried])
        call = (
            f"lax.scan({body}, {carry_in}, {_tuple(operands[constants + carried :])}, length={length}, "
            f"reverse={params['reverse']}, unroll={unroll})"
        )
        # Flat, like the results of the equation: carried values, then stacked ones.
        return f"jax.tree.leaves({call})"

    def function(self, closed: Any) -> str:
        """Returns the name of a function that is written for a jaxpr."""
        inner = getattr(closed, "jaxpr", closed)
        name = self.fresh()
        arguments = [self.fresh() for _ in inner.invars]
        nested = self.nested(inner, dict(zip(inner.invars, arguments, strict=True)), closed)
        results = f"return {_tuple([nested.text(v) for v in inner.outvars])}"
        self.lines_ += [f"def {name}({', '.join(arguments)}):", *_indented([*nested.lines_, results])]
        return name

    def nested(self, jaxpr: Any, names: dict[Variable, str], closed: Any) -> _BodySource:
        """Returns the equations of a jaxpr, in a function of this one."""
        constants = zip(jaxpr.constvars, getattr(closed, "consts", ()), strict=True)
        body = _BodySource(names | {v: _array(value) for v, value in constants}, self.count)
        for equation in jaxpr.eqns:
            body.equation(equation, [body.text(a) for a in equation.invars], equation.outvars)
        return body


class _StageSource(_BodySource):
    """Lines of a stage."""

    def __init__(self, flat: FlatLoss, body: StageBody) -> None:
        constants = {v: f"constants[{n}]" for n, v in enumerate(flat.constants)}
        super().__init__(constants, [0])
        self.flat = flat
        self.body = body
        self.first: dict[Variable, int] = {}

    def lines(self) -> list[str]:
        """Returns all of them."""
        for n, (number, (first, _)) in enumerate(self.body.leaves):
            leaf = self.flat.parameters[number]
            self.names[leaf] = self.fresh()
            self.first[leaf] = first
            joined = f"leaves[{n}][0] if len(leaves[{n}]) == 1 else jnp.concatenate(leaves[{n}])"
            self.lines_.append(f"{self.names[leaf]} = {joined}")
        for n, variable in enumerate(self.body.reads):
            self.names[variable] = f"received[{n}]"
        for node in self.body.free:
            self.node(node)
        for run in self.body.runs:
            self.run(run)
        return [*self.lines_, f"return {_tuple([self.text(v) for v in self.body.results])}"]

    def node(self, node: Node) -> None:
        """Writes a node that is not an iteration of a loop."""
        sliced = self.flat.slice_of_rows(node) if node.iteration is None else None
        if sliced is not None:
            self.names[node.results[0]] = self.rows(*sliced)
            return
        self.equation(node.equation, [self.text(a) for a in node.operands], node.results)

    def run(self, run: NodeRun) -> None:
        """Writes a node, or iterations of a loop."""
        node = run.first
        if run.iterations is None:
            self.node(node)
            return
        unstacked = [self.text(a) for a in node.operands[: len(node.operands) - len(node.stacked)]]
        stacked = [self.rows(a, node.rows(run.iterations)) for a in node.stacked]
        call = self.call(node.equation, [*unstacked, *stacked], run.length)
        names = [self.fresh() for _ in run.last.results]
        self.names.update(zip(run.last.results, names, strict=True))
        self.lines_.append(f"{_tuple(names)} = {call}")

    def rows(self, atom: Any, rows: Rows) -> str:
        """Returns rows of a stacked value, as an expression."""
        if atom in self.first:
            first = self.first[atom]
            return f"{self.names[atom]}[{rows[0] - first}:{rows[1] - first}]"
        node = self.flat.by_rows(atom) if atom not in self.names else None
        if node is None:
            return f"{self.text(atom)}[{rows[0]}:{rows[1]}]"
        operands = [
            self.rows(a, rows) if is_variable(a) and a.aval.shape else self.text(a) for a in node.operands
        ]
        return self.call(node.equation, operands)


def _refusal(equation: Any, reason: str) -> ProgramError:
    line = jax_internals.line_of(equation)
    operation = f"operation '{equation.primitive.name}'{f' at {line}' if line else ''}"
    return ProgramError(f"plan.source: {operation} cannot be written: {reason}; plan.save keeps the cut")


def _activation(equation: Any) -> str:
    """Returns the name in `jax.nn` of a function with a custom derivative; empty for another."""
    (inner,) = jax_internals.jaxprs_within(equation)
    name, _, location = str(inner.debug_info.func_src_info).partition(" at ")
    # Its rule cannot be written as code, but a function of `jax.nn` brings its own.
    is_of_jax = location.startswith(jax.__path__[0]) and len(inner.invars) == 1
    return name if is_of_jax and hasattr(jax.nn, name) else ""


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _values(params: dict[str, Any]) -> list[Any]:
    return [value for value in params.values() if not isinstance(value, (type, np.dtype, enum.Enum))]


def _literal(atom: Any) -> str:
    return _array(np.asarray(atom.val, atom.aval.dtype))


def _array(value: Any) -> str:
    array = np.asarray(value)
    if array.size > 64 or array.dtype.kind not in "biufV":
        raise ProgramError(
            f"plan.source: a constant {array.dtype}{list(array.shape)} is too large to be written"
        )
    return f"jnp.asarray({_number(array.tolist())}, {array.dtype.name!r})"


def _number(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_number, value))}]"
    return f"float('{value}')" if isinstance(value, float) and not math.isfinite(value) else repr(value)


def _written(value: Any) -> str:
    """Returns a parameter of a primitive as Python; raises ValueError if Python has no text for the value."""
    writers: list[tuple[Callable[[Any], bool], Callable[[Any], str]]] = [
        (lambda v: v is None or isinstance(v, (bool, int, str)), repr),
        (lambda v: isinstance(v, float), _number),
        (lambda v: isinstance(v, np.integer), lambda v: str(int(v))),
        (lambda v: isinstance(v, np.dtype), lambda v: f"jnp.dtype({v.name!r})"),
        (
            lambda v: isinstance(v, enum.Enum) and hasattr(jax.lax, type(v).__name__),
            lambda v: f"lax.{type(v).__name__}.{v.name}",
        ),
        (
            lambda v: dataclasses.is_dataclass(v) and hasattr(jax.lax, type(v).__name__),
            lambda v: _fields(v, [field.name for field in dataclasses.fields(v)]),
        ),
        (
            lambda v: isinstance(v, tuple) and hasattr(v, "_fields") and hasattr(jax.lax, type(v).__name__),
            lambda v: _fields(v, v._fields),
        ),
        (lambda v: type(v) is tuple, lambda v: _tuple([_written(item) for item in v])),
    ]
    for fits, write in writers:
        if fits(value):
            return write(value)
    raise ValueError(f"{type(value).__name__} cannot be written")


def _fields(value: Any, names: Sequence[str]) -> str:
    fields = ", ".join(f"{name}={_written(getattr(value, name))}" for name in names)
    return f"lax.{type(value).__name__}({fields})"

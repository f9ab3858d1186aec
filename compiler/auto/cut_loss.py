"""Loss cut into stages: the function that calls them on their slices."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pathways.compiler.api import jit, program
from pathways.compiler.auto.blocks import Blocks, blocks_of
from pathways.compiler.auto.flat_loss import FlatLoss, flatten_loss, is_variable
from pathways.compiler.auto.stage_bodies import StageBody, stage_bodies
from pathways.compiler.auto.stage_function import stage_function
from pathways.compiler.frontend.trace_state import active_trace
from pathways.compiler.frontend.trees import name_of
from pathways.compiler.lower.phases import ProgramError
from pathways.runtime.resources.virtual import VirtualSlice


class CutLoss:
    """Loss with a placed function for each stage.

    Args:
      args: the types of its arguments; the first are the user's parameters.
      shapes: a tree of the types of its results.
      positions: the first node of each stage but the first.
      slices: the slice of each stage.

    Attributes:
      positions: the first node of each stage but the first.
      bodies: the contents of each stage.
      slices: the slice of each stage.
      args: the types of the arguments of the user's loss.
      params: the types of its parameters.
    """

    def __init__(
        self,
        flat: FlatLoss,
        args: tuple[Any, ...],
        shapes: Any,
        positions: Sequence[int],
        slices: Sequence[VirtualSlice],
    ) -> None:
        self.flat = flat
        self.slices = tuple(slices)
        self.bodies: list[StageBody] = stage_bodies(flat, positions)
        self.blocks: Blocks = blocks_of(flat, jax.tree.structure(args[0]), self.bodies)
        self.params = self.blocks.split(args[0])
        self.args = args
        self.out_structure: Any = jax.tree.structure(shapes)
        self.positions = tuple(positions)
        edges = itertools.pairwise([0, *positions, len(flat.nodes)])
        # Named after the units in them, which readers of traces need.
        self.names = [f"{flat.name}_{first}_{end}" for first, end in edges]
        self._stages = [
            jit(stage_function(flat, body, name), devices=slice, stage=n)
            for n, (body, name, slice) in enumerate(zip(self.bodies, self.names, self.slices, strict=True))
        ]

    def __call__(self, params: Any, *args: Any) -> Any:
        """Returns the results of the loss for parameters of the plan and a microbatch."""
        leaves = self._checked(params, *args)
        values = dict(zip(self.flat.inputs, jax.tree.leaves(args), strict=True))
        for body, stage in zip(self.bodies, self._stages, strict=True):
            blocks = [[leaves[n] for n in self.blocks.numbers(leaf, rows)] for leaf, rows in body.leaves]
            computed = stage(blocks, [values[v] for v in body.reads])
            values.update(zip(body.results, computed, strict=True))
        results = [values[atom] if is_variable(atom) else jnp.asarray(atom.val) for atom in self.flat.outputs]
        return self.out_structure.unflatten(results)

    def _checked(self, params: Any, *args: Any) -> list[Any]:
        """Returns the leaves of arguments; a TypeError names one of another type than at the cut."""
        subject = f"the loss of pw.auto of '{self.flat.name}'"
        if len(args) != len(self.args) - 1:
            raise TypeError(f"{subject} takes {len(self.args)} arguments, got {len(args) + 1}")
        for n, (got, expected) in enumerate(zip((params, *args), (self.params, *self.args[1:]), strict=True)):
            structure: Any = jax.tree.structure(expected)
            if structure != jax.tree.structure(got):
                hint = ""
                if n == 0 and jax.tree.structure(got) == self.blocks.structure:
                    hint = ": use plan.split, or plan.init"
                raise TypeError(
                    f"{subject} takes argument {n} as {structure}, got {jax.tree.structure(got)}{hint}"
                )
            pairs = jax.tree_util.tree_leaves_with_path(got)
            for (path, leaf), like in zip(pairs, structure.flatten_up_to(expected), strict=True):
                self._check_leaf(subject, f"args[{n}]{name_of(path)}", leaf, like, microbatch=n > 0)
        return jax.tree.leaves(params)

    def _check_leaf(self, subject: str, name: str, leaf: Any, like: Any, *, microbatch: bool) -> None:
        shape, dtype = jnp.shape(leaf), jnp.result_type(leaf)
        if shape == tuple(like.shape) and dtype == like.dtype:
            return
        message = (
            f"{subject} was cut for {name} of type {_type(like.shape, like.dtype)}, got {_type(shape, dtype)}"
        )
        if microbatch and dtype == like.dtype and shape[1:] == tuple(like.shape[1:]) and shape:
            message += (
                f": the microbatch dimension of {like.shape[0]} is baked in; give pw.auto args of "
                "microbatches of the size of pw.accumulate"
            )
        raise TypeError(message)


class PlannedLoss:
    """Loss of a plan: each program traces it again, and cuts that trace as the plan does.

    Called alone it is a program, which is traced again when functions of `jax.jit` are.

    Args:
      loss: the user's loss.
    """

    def __init__(self, loss: Callable[..., Any], cut: CutLoss) -> None:
        self._loss = loss
        self._cut = cut
        self.__name__ = cut.flat.name

        def alone(params: Any, *args: Any) -> Any:
            return self(params, *args)

        alone.__name__ = self.__name__
        self._alone = program(alone)

    def __call__(self, params: Any, *args: Any) -> Any:
        """Returns the results of the loss for parameters of the plan and a microbatch.

        Raises:
          ProgramError: the loss has not the operations for which it was cut.
          TypeError: an argument has another type than when it was cut.
        """
        if active_trace.program is None:
            return self._alone(params, *args)
        cut = self._cut
        flat, shapes = flatten_loss(self._loss, cut.args, cut.flat.name)
        if flat.operations != cut.flat.operations:
            raise self._changed(flat)
        again = CutLoss(flat, cut.args, shapes, cut.positions, cut.slices)
        if again.blocks.edges != cut.blocks.edges:
            raise self._changed(flat)
        return again(params, *args)

    def _changed(self, flat: FlatLoss) -> ProgramError:
        """Returns the error of a loss with other operations, or parts of parameters, than the plan's."""
        old, new = self._cut.flat, flat
        pairs = enumerate(zip(new.operations, old.operations, strict=False))
        n = next((n for n, (now, then) in pairs if now != then), min(len(new.nodes), len(old.nodes)))
        current, planned = (
            f"'{loss.nodes[n].equation.primitive.name}' at {loss.nodes[n].line}"
            if n < len(loss.nodes)
            else "none"
            for loss in (new, old)
        )
        return ProgramError(
            f"the loss of pw.auto of '{old.name}' has other operations than when it was cut: unit {n} is "
            f"{current}, and was {planned}; a value that it captures or a JAX setting has changed: make a "
            "plan with it"
        )


def _type(shape: Sequence[int], dtype: Any) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"

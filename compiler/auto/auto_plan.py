"""Plan of `pw.auto`: a loss cut into stages, its parameters, its schedule, and the cuts that were tried."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax

from pathways.compiler.api import jit, program
from pathways.compiler.auto.cut_loss import CutLoss, PlannedLoss
from pathways.compiler.auto.request import AutoRequest
from pathways.compiler.auto.source import source_of
from pathways.compiler.auto.tried_cuts import TriedCut, write_cuts
from pathways.compiler.frontend.user_code import symbol_of
from pathways.runtime.resources.tables import duration_with_unit, html_table, percent, size, table
from pathways.runtime.resources.virtual import ProcessBound, VirtualSlice
from pathways.runtime.traces.timeline import Timeline

_LAYER_WIDTH = 60
"""Width of the names of layers, so that a row of a stage fits in 120 columns."""


class AutoPlan(ProcessBound):
    """Loss cut for slices; created by `pw.auto`. `print` shows the cuts that were tried.

    Attributes:
      loss: the loss, to be called in a program with parameters of the plan and a microbatch. Each program
        traces it again.
      schedule: the schedule for `pw.program`.
      num_microbatches: the number of microbatches of a step.
      tried: the cuts that were tried, the chosen one first.
      unit: of the times in them: `flops`, or `s`.
    """

    def __init__(
        self,
        cut: CutLoss,
        request: AutoRequest,
        tried: Sequence[TriedCut],
        timeline: Callable[[], Timeline],
        unit: str,
    ) -> None:
        self.loss = PlannedLoss(request.loss, cut)
        self.tried = tuple(tried)
        self.schedule = self.tried[0].schedule
        self.num_microbatches = request.num_microbatches
        self.unit = unit
        self._cut = cut
        self._request = request
        self._timeline = timeline

    @property
    def slices(self) -> tuple[VirtualSlice, ...]:
        """The slices of its stages."""
        return self._request.slices

    @property
    def args(self) -> tuple[Any, ...]:
        """The types of the arguments of the user's loss."""
        return self._request.args

    @property
    def params(self) -> Any:
        """The parameters: a tree of `jax.ShapeDtypeStruct`s, with a tuple for a stacked leaf that is cut."""
        return self._cut.params

    def __repr__(self) -> str:
        return f"<pw.auto plan of {self._cut.flat.name}, {len(self._cut.bodies)} stages, {self.schedule}>"

    def __str__(self) -> str:
        count = len(self._cut.flat.nodes)
        best = self.tried[0]
        lines = [
            f"pw.auto of '{self._cut.flat.name}': {count} units, {self.num_microbatches} microbatches, "
            f"schedule '{self.schedule}'",
            table([_HEADS, *(_row(cut, self.unit) for cut in self.tried)]),
            "",
            "stages",
            table([("stage", "slice", "units", "work", "bytes to it", "begins at"), *self._stages(best)]),
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_table([_HEADS, *(_row(cut, self.unit) for cut in self.tried)])

    def _stages(self, best: TriedCut) -> list[tuple[str, ...]]:
        nodes = self._cut.flat.nodes
        edges = [0, *best.positions, len(nodes)]
        crossing = [0, *best.crossing]
        return [
            (
                str(n),
                slice.name,
                f"{edges[n]} to {edges[n + 1] - 1}",
                duration_with_unit(best.loads[n], self.unit),
                size(crossing[n]),
                _end_of(nodes[edges[n]].layer),
            )
            for n, slice in enumerate(self._cut.slices)
        ]

    def split(self, tree: Any) -> Any:
        """Converts the user's parameters to the plan's, everywhere in a tree.

        Args:
          tree: arrays, or `jax.ShapeDtypeStruct`s: parameters, or the state of an optimizer.

        Raises:
          TypeError: the tree has no parameters of the user.
        """
        return self._cut.blocks.split(tree)

    def merge(self, tree: Any) -> Any:
        """Returns the inverse of `split`, for checkpoints and other cuts; leaves that were cut are fetched to
        the host.

        Raises:
          TypeError: the tree has no parameters of the plan.
        """
        return self._cut.blocks.merge(tree)

    def init(self, init: Callable[..., Any], *args: Any) -> Any:
        """Computes the parameters of the plan, each on the slice of the first stage that reads it.

        Args:
          init: a function that returns the parameters of the user.
          *args: its arguments, such as a key.

        Raises:
          TypeError: its parameters differ from the plan's in structure or type.
        """
        types = self._cut.args[0]
        initialised = jax.eval_shape(init, *args)
        structure: Any = jax.tree.structure(types)
        if structure != jax.tree.structure(initialised):
            raise TypeError(
                f"'{symbol_of(init)}' returns {jax.tree.structure(initialised)}, "
                f"but the plan is for parameters of structure {structure}"
            )
        pairs = jax.tree_util.tree_leaves_with_path(initialised)
        for (path, leaf), like in zip(pairs, jax.tree.leaves(types), strict=True):
            if (leaf.shape, leaf.dtype) != (tuple(like.shape), like.dtype):
                raise TypeError(
                    f"'{symbol_of(init)}' returns {leaf.dtype}{list(leaf.shape)} at "
                    f"{jax.tree_util.keystr(path)}, but the plan is for {like.dtype}{list(like.shape)}"
                )
        blocks = self._cut.blocks
        homes = [self._cut.slices[stage] for stage in blocks.homes]
        numbers = {
            slice: [n for n, home in enumerate(homes) if home is slice] for slice in dict.fromkeys(homes)
        }

        def of_slice(slice: Any) -> Callable[..., list[Any]]:
            def initial(*args: Any) -> list[Any]:
                # Each slice traces all of `init`; XLA removes what its own leaves do not need.
                leaves = blocks.cut_structure.flatten_up_to(blocks.split(init(*args)))
                return [leaves[n] for n in numbers[slice]]

            return jit(initial, devices=slice)

        placed = {slice: of_slice(slice) for slice in numbers}

        @program
        def initial(*args: Any) -> list[list[Any]]:
            return [placed[slice](*args) for slice in numbers]

        leaves: list[Any] = [None] * len(homes)
        for slice, of_its in zip(numbers, initial(*args), strict=True):
            for n, leaf in zip(numbers[slice], of_its, strict=True):
                leaves[n] = leaf
        return blocks.cut_structure.unflatten(leaves)

    @property
    def constants(self) -> tuple[Any, ...]:
        """The arrays that the loss closed over when it was cut, as arguments of the function in `source`."""
        return tuple(self._cut.flat.constants.values())

    def source(self) -> str:
        """Returns Python code that cuts the loss in the same way: a function `cut_loss` of slices, with
        `pw.jit` calls.

        It lists operation by operation, with their lines in the loss.

        Raises:
          ProgramError: an operation cannot be written, such as a function with a custom derivative.
        """
        return source_of(self._cut)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the cut and the schedule as JSON; `pw.auto(..., plan=path)` uses them without a search.

        Args:
          path: the file.

        Raises:
          OSError: the file cannot be written.
        """
        write_cuts(path, self.tried, self._request, self._cut.flat)

    def timeline(self) -> Timeline:
        """Returns the simulated step of the chosen cut under its schedule, with its sums of gradients."""
        return self._timeline()


_HEADS = (
    "cut",
    "first units",
    "work of stages",
    "bytes at cuts",
    "bound",
    "schedule",
    "peak",
    "bubble",
    "step",
)


def _row(cut: TriedCut, unit: str) -> tuple[str, ...]:
    dropped = not cut.schedule
    return (
        cut.kind,
        " ".join(map(str, cut.positions)),
        " ".join(duration_with_unit(load, unit).removesuffix(" FLOPs") for load in cut.loads),
        " ".join(f"{size(crossing)}" for crossing in cut.crossing),
        duration_with_unit(cut.bound, unit),
        "dropped" if dropped else cut.schedule,
        "" if dropped else size(cut.peak),
        "" if dropped else percent(cut.bubble),
        "" if dropped else duration_with_unit(cut.step, unit) + ("" if cut.fits else ", over max_bytes"),
    )


def _end_of(layer: str) -> str:
    """Returns the name of a layer, without the start of a long one."""
    return layer if len(layer) <= _LAYER_WIDTH else f"...{layer[3 - _LAYER_WIDTH :]}"

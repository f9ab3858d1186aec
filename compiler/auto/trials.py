"""Trials of cuts: each is compiled up to its schedule, and its step is simulated."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
from jaxlib.mlir import ir

from pathways.compiler.api import program
from pathways.compiler.auto.cut_loss import CutLoss
from pathways.compiler.frontend.accumulate import accumulate
from pathways.compiler.lower.phases import run_phases
from pathways.passes.analysis.links import Link
from pathways.passes.analysis.quantities import FLOPS
from pathways.passes.pipeline import Options
from pathways.runtime.plan.lower import plan_of
from pathways.runtime.plan.plan import Plan
from pathways.runtime.simulate.replay import simulate
from pathways.runtime.simulate.times import TimesOfCalls
from pathways.runtime.traces.timeline import Timeline


@dataclasses.dataclass(frozen=True)
class TrialTimes:
    """Times of a trial.

    Attributes:
      factors: the time of an operation on a device, for each stage.
      link: the links between slices.
    """

    unit: str
    factors: tuple[float, ...]
    link: Link

    def timeline(self, plan: Plan, title: str) -> Timeline:
        """Returns the simulated step of a plan."""
        flops = plan.times.tables.get(FLOPS, {})
        calls = {key: self.factors[key.stage or 0] * time for key, time in flops.items()}
        return simulate(plan, TimesOfCalls(self.unit, calls), self.link, title)


def step_program(loss: CutLoss, microbatches: int, has_aux: bool) -> Any:
    """Returns the program of a step (gradients over microbatches), and the types of its arguments."""
    cut = [n for n, arg in enumerate(loss.args) if n and all(leaf.shape for leaf in jax.tree.leaves(arg))]
    batch = [
        jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((microbatches * leaf.shape[0], *leaf.shape[1:]), leaf.dtype),
            arg,
        )
        if n in cut
        else arg
        for n, arg in enumerate(loss.args)
    ]

    def gradient(*args: Any) -> Any:
        value, grads = jax.value_and_grad(loss, has_aux=has_aux)(*args)
        return value[0] if has_aux else value, grads

    def step(params: Any, *args: Any) -> Any:
        return accumulate(gradient, microbatches, batch_argnums=cut)(params, *args)

    gradient.__name__ = loss.flat.name
    step.__name__ = f"step_of_{loss.flat.name}"
    return program(step), (loss.params, *batch[1:])


class Trial:
    """Cut loss, traced and placed once; each schedule of it is a compilation of the rest.

    Args:
      microbatches: the number of microbatches of a step.
      has_aux: whether it returns more than its value.

    Raises:
      ProgramError: a pass rejects the program.
    """

    def __init__(self, loss: CutLoss, microbatches: int, has_aux: bool) -> None:
        step, args = step_program(loss, microbatches, has_aux)
        self._name = step.name
        _, traced = step.traced(*args)
        self._context = traced.module.context
        self._placed = run_phases(traced.module, self._name, Options(), until="placed").bytecode["placed"]

    def plan(self, schedule: str) -> Plan:
        """Returns the step under a schedule.

        Raises:
          ProgramError: the schedule does not fit it.
        """
        module = ir.Module.parse(self._placed, self._context)
        forms = run_phases(module, self._name, Options(policy=schedule))
        return plan_of(forms.scheduled, self._name, proved=True)

"""`pw.auto`: stages cut by cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from pathways.compiler.auto.auto_plan import AutoPlan, TriedCut
from pathways.compiler.auto.cut_loss import CutLoss
from pathways.compiler.auto.flat_loss import FlatLoss, flatten_loss
from pathways.compiler.auto.partition import Machine, Partition, best_partitions
from pathways.compiler.auto.trials import Trial, TrialTimes
from pathways.compiler.auto.units import units_of
from pathways.compiler.frontend.arguments import abstract
from pathways.compiler.frontend.names import symbol_of
from pathways.compiler.lower.phases import ProgramError
from pathways.passes.schedule.request import RequestError, read_request
from pathways.passes.util.links import Link
from pathways.passes.util.quantities import FLOPS
from pathways.runtime.resources.virtual import VirtualSlice
from pathways.runtime.timelines.timeline import Timeline
from pathways.runtime.xla.tracebacks import boundary

SCHEDULES = ("1f1b", "zb-h1", "zb-v", "search")

_SIMULATED = 5
"""How many of the best cuts of each shape are simulated, besides the even one."""


@boundary
def auto(
    loss: Callable[..., Any],
    *,
    slices: Sequence[VirtualSlice],
    microbatches: int,
    args: tuple[Any, ...],
    has_aux: bool = False,
    schedules: Sequence[str] = SCHEDULES,
    speeds: Sequence[float] | None = None,
) -> AutoPlan:
    """Cuts a loss into stages on slices, where a simulated step is shortest.

    The loss is plain JAX in which nothing is placed. It is cut between the operations that it is made of,
    around `jax.checkpoint` blocks, and between turns of a `jax.lax.scan` over layers, whose stacked
    parameters become a block for each stage. What depends on no microbatch is repeated on each stage that
    reads it.
    Cuts are found by dynamic programming over the floating point operations of forward and backward; the best
    of them, and the even split of layers, are compiled up to their schedules and simulated.

    Args:
      loss: the loss; its first argument are the parameters, which are cut, the others a microbatch.
      slices: the slices, in the order in which a microbatch goes through them.
      microbatches: how many microbatches a step has.
      args: the arguments of the loss: arrays, or `jax.ShapeDtypeStruct`s.
      has_aux: whether the loss returns `(value, auxiliary)`, as in `jax.value_and_grad`.
      schedules: the schedules to choose from. With `zb-v` a V is also tried, with two stages on each slice.
      speeds: how much each slice does in a unit of time; its number of devices unless given.

    Returns:
      The plan: `params`, `loss` and `schedule` for a program, `init`, `split` and `merge` for parameters.

    Raises:
      ProgramError: the loss cannot be cut; names the place.
      TypeError: an argument of another type.
      ValueError: an argument out of range.

    Source: Zheng et al., "Alpa", OSDI 2022, section 5.

    Example:
      ```python
      plan = pw.auto(loss, slices=[s0, s1], microbatches=8, args=(params, microbatch))
      params = plan.init(init, key)

      @pw.program(schedule=plan.schedule, donate_argnums=0)
      def step(params, batch):
          value, grads = pw.accumulate(jax.value_and_grad(plan.loss), 8)(params, batch)
          return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
      ```
    """
    request = _request(loss, slices, microbatches, args, has_aux, schedules, speeds)
    flat, shapes = flatten_loss(loss, request.args, request.name)
    return _Search(request, flat, shapes).plan()


@dataclasses.dataclass(frozen=True)
class AutoRequest:
    """What a user asks of `pw.auto`, checked.

    Attributes:
      name: of the loss.
      slices: the slices.
      microbatches: how many there are.
      args: the types of the arguments.
      has_aux: whether the loss returns more than its value.
      schedules: those to choose from.
      speeds: how much each slice does in a unit of time.
    """

    name: str
    slices: tuple[VirtualSlice, ...]
    microbatches: int
    args: tuple[Any, ...]
    has_aux: bool
    schedules: tuple[str, ...]
    speeds: tuple[float, ...]


def _request(
    loss: Callable[..., Any],
    slices: Sequence[VirtualSlice],
    microbatches: int,
    args: tuple[Any, ...],
    has_aux: bool,
    schedules: Sequence[str],
    speeds: Sequence[float] | None,
) -> AutoRequest:
    if not callable(loss):
        raise TypeError(f"pw.auto expects a loss, got {type(loss).__name__}")
    name = symbol_of(loss)
    what = f"pw.auto of '{name}'"
    slices = tuple(slices)
    for one in slices:
        if not isinstance(one, VirtualSlice):
            raise TypeError(
                f"{what}: slices must be from make_virtual_device_set().add_slice(...), "
                f"got {type(one).__name__}"
            )
        if len(one.replicas) > 1:
            raise ValueError(
                f"{what}: slice {one.name} has {len(one.replicas)} replicas, each of which takes a part of "
                "the microbatches: pw.auto cuts for slices without replicas"
            )
    if len(slices) < 2 or len(set(slices)) < len(slices):
        raise ValueError(f"{what}: expected two different slices or more, got {[s.name for s in slices]}")
    if isinstance(microbatches, bool) or not isinstance(microbatches, int) or microbatches < 1:
        raise ValueError(f"{what}: microbatches must be an integer of at least 1, got {microbatches!r}")
    if not isinstance(args, tuple) or not args:
        raise TypeError(
            f"{what}: args must be a tuple of the arguments of the loss, got {type(args).__name__}"
        )
    types = tuple(jax.tree.map(lambda leaf: _type_of(what, leaf), arg) for arg in args)
    if isinstance(schedules, str) or not schedules:
        raise ValueError(f"{what}: schedules must be a sequence of policies, got {schedules!r}")
    for schedule in schedules:
        try:
            read_request(schedule)
        except RequestError as error:
            raise ValueError(f"{what}: schedule is {error}") from None
    rates = tuple(float(s.size) for s in slices) if speeds is None else tuple(map(float, speeds))
    if len(rates) != len(slices) or not all(0 < rate < float("inf") for rate in rates):
        raise ValueError(
            f"{what}: speeds must be a positive number for each of {len(slices)} slices, got {speeds!r}"
        )
    return AutoRequest(name, slices, microbatches, types, has_aux, tuple(schedules), rates)


def _type_of(what: str, leaf: Any) -> jax.ShapeDtypeStruct:
    (aval,) = abstract([leaf], what, lambda: ["args"])
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


class _Search:
    """Finds the best cut of a loss."""

    def __init__(self, request: AutoRequest, flat: FlatLoss, shapes: Any) -> None:
        self.request = request
        self.flat = flat
        self.shapes = shapes
        self.units = units_of(flat)
        self.machine = Machine(request.speeds, request.microbatches)
        sizes = {s.name: rate / s.size for s, rate in zip(request.slices, request.speeds, strict=True)}
        self.clock = TrialTimes(sizes, Link())

    def plan(self) -> AutoPlan:
        partitions = self._partitions()
        tried: list[tuple[TriedCut, CutLoss | None, Timeline | None]] = []
        best = float("inf")
        for kind, partition in partitions:
            cut = self._cut(kind, partition)
            if self._least_step(partition) >= best:
                tried.append((cut, None, None))
                continue
            cut_loss = self._loss(partition)
            simulated = self._simulated(cut, cut_loss, partition.v)
            if simulated is None:
                continue
            tried.append((simulated[0], cut_loss, simulated[1]))
            best = min(best, simulated[0].step)
        if not any(cut.schedule for cut, _, _ in tried):
            raise ProgramError(
                f"{self._what}: none of the schedules {', '.join(self.request.schedules)} fits a cut"
            )
        tried.sort(key=lambda entry: (entry[0].step, sum(entry[0].crossing)))
        chosen, loss, timeline = tried[0]
        assert loss is not None
        assert timeline is not None
        return AutoPlan(
            loss,
            chosen.schedule,
            self.request.microbatches,
            [cut for cut, _, _ in tried],
            lambda: timeline,
            FLOPS,
        )

    @property
    def _what(self) -> str:
        return f"pw.auto of '{self.request.name}'"

    def _partitions(self) -> list[tuple[str, Partition]]:
        """The cuts to simulate: the even one, and the best by their closed bounds."""
        count = len(self.request.slices)
        candidates = self.units.candidates(count)
        if len(candidates) < count - 1:
            raise ProgramError(
                f"{self._what}: it can be cut at {len(candidates)} positions, too few for {count} slices: "
                f"its {self.units.count} operations have {len(self.units.products)} products of matrices, "
                "behind the last of which it is not cut"
            )
        best = best_partitions(self.units, candidates, self.machine, v=False, most=_SIMULATED)
        self._check_work(best[0])
        partitions = [("contiguous", partition) for partition in best]
        if any("zb-v" in schedule for schedule in self.request.schedules):
            finer = self.units.candidates(2 * count)
            of_v = best_partitions(self.units, finer, self.machine, v=True, most=_SIMULATED)
            partitions += [("v", partition) for partition in of_v]
        positions = self.units.even(count)
        if positions is not None:
            bound = self.machine.bound(self.units, positions, range(count))
            even = Partition(bound, positions)
            partitions = [("even", even), *(p for p in partitions if p[1].positions != positions)]
        return partitions

    def _check_work(self, partition: Partition) -> None:
        """Refuses a cut in which a slice has nothing to do."""
        loads = self.machine.loads(self.units, partition.positions, partition.slices())
        if min(loads) > 0.01 * sum(loads) / len(loads):
            return
        work = self.units.before[1:] - self.units.before[:-1]
        largest = int(work.argmax())
        idle = sum(load <= 0.01 * sum(loads) / len(loads) for load in loads)
        line = self.flat.nodes[largest].line
        raise ProgramError(
            f"{self._what}: one operation{f' at {line}' if line else ''} is "
            f"{work[largest] / work.sum():.0%} of the work: {len(loads) - idle} slices do as well"
        )

    def _least_step(self, partition: Partition) -> float:
        """What no schedule of a cut can do better than: the longest slice without a gap."""
        loads = self.machine.loads(self.units, partition.positions, partition.slices())
        slices = partition.slices()
        of_slice = [sum(x for x, s in zip(loads, slices, strict=True) if s == n) for n in set(slices)]
        return self.request.microbatches * max(of_slice)

    def _cut(self, kind: str, partition: Partition) -> TriedCut:
        positions = partition.positions
        loads = self.machine.loads(self.units, positions, partition.slices())
        crossing = tuple(int(self.units.alive[p]) for p in positions)
        return TriedCut(kind, positions, tuple(loads), crossing, partition.bound)

    def _loss(self, partition: Partition) -> CutLoss:
        slices = [self.request.slices[n] for n in partition.slices()]
        return CutLoss(self.flat, self.request.args, self.shapes, partition.positions, slices)

    def _simulated(self, cut: TriedCut, loss: CutLoss, v: bool) -> tuple[TriedCut, Timeline] | None:
        """The cut under the schedule that is the best for it; None if none of them fits."""
        trial = Trial(loss, self.request.microbatches, self.request.has_aux)
        best: tuple[TriedCut, Timeline] | None = None
        for schedule in self.request.schedules:
            if ("zb-v" in schedule) != v and "search" not in schedule:
                continue
            timeline = self.clock.timeline(trial.plan(schedule), f"simulated, times={FLOPS}")
            if best is None or timeline.step_time < best[0].step:
                peak = max(timeline.peak_bytes(slice) for slice in timeline.slices)
                simulated = dataclasses.replace(
                    cut, schedule=schedule, step=timeline.step_time, bubble=timeline.mean_bubble, peak=peak
                )
                best = simulated, timeline
        return best

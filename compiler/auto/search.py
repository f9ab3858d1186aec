"""Search for the best cut of a loss: by closed bounds first, then by simulated steps."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from pathways.compiler.auto.auto_plan import AutoPlan
from pathways.compiler.auto.cut_loss import CutLoss
from pathways.compiler.auto.flat_loss import FlatLoss
from pathways.compiler.auto.partition import Machine, Partition, best_partitions
from pathways.compiler.auto.request import AutoRequest
from pathways.compiler.auto.trials import Trial, TrialTimes
from pathways.compiler.auto.tried_cuts import TriedCut
from pathways.compiler.auto.unit_times import timed_units
from pathways.compiler.auto.units import bytes_kept, units_of
from pathways.compiler.lower.phases import ProgramError
from pathways.passes.analysis.links import Link, read_link
from pathways.passes.analysis.quantities import FLOPS, TimesError
from pathways.runtime.plan.plan import Plan
from pathways.runtime.resources.tables import size
from pathways.runtime.traces.timeline import Timeline

_ROWS, _VS = 3, 2
"""Number of the best cuts in a row, and in a V, that are simulated besides the even one."""

_IDLE = 0.01
"""Fraction of the mean work below which a stage counts as idle."""

_LEAST_FORWARD = 0.2
"""Lower bound of a forward's share in forward and backward."""

_PATIENCE = 5.0
"""Seconds after which the progress of a search is printed."""


@dataclasses.dataclass(frozen=True)
class _Simulated:
    """Cut that was simulated under its best schedule."""

    cut: TriedCut
    loss: CutLoss
    timeline: Timeline


class CutSearch:
    """Search for the best cut of a loss.

    Args:
      request: the arguments of `pw.auto`.
      shapes: the types of its results.

    Raises:
      TimesError: its times or links cannot be used.
    """

    def __init__(self, request: AutoRequest, flat: FlatLoss, shapes: Any) -> None:
        self.request = request
        self.flat = flat
        self.shapes = shapes
        self.flops = units_of(flat)
        self.units, self.unit = timed_units(self.flops, request.times, request.name, request.speeds)
        self.machine = Machine(request.speeds, request.num_microbatches, self._link())
        self.began = time.monotonic()
        self.refusals: dict[str, None] = {}

    def plan(self) -> AutoPlan:
        """Returns the plan with the fastest step within memory.

        Raises:
          ProgramError: there is none.
        """
        partitions = self._partitions()
        tried = list(self._tried(partitions))
        simulated = [trial for trial in tried if isinstance(trial, _Simulated)]
        if simulated and not any(trial.cut.fits for trial in simulated):
            smaller = self._smaller([partition for _, partition in partitions])
            tried += self._tried(smaller)
            simulated = [trial for trial in tried if isinstance(trial, _Simulated)]
        if not simulated:
            raise ProgramError(
                f"{self.request.subject}: no schedule fits a cut:\n" + "\n".join(self.refusals)
            )
        if not any(trial.cut.fits for trial in simulated):
            best = min(simulated, key=lambda trial: trial.cut.peak)
            raise ProgramError(
                f"{self.request.subject}: no cut fits max_bytes={self.request.max_bytes} on each slice; the "
                f"smallest peak is {best.cut.peak} ({size(best.cut.peak)}), cut before units "
                f"{', '.join(map(str, best.cut.positions))} with schedule '{best.cut.schedule}'"
            )
        chosen = min(simulated, key=lambda trial: trial.cut.rank)
        cuts = sorted(
            (trial.cut if isinstance(trial, _Simulated) else trial for trial in tried), key=lambda c: c.rank
        )
        return self._plan(chosen.loss, cuts, chosen.timeline)

    def again(self, cuts: list[TriedCut]) -> AutoPlan:
        """Returns the plan of an earlier search from its cuts, the chosen one first."""
        cut = cuts[0]
        return self._plan(self._loss(Partition(cut.bound, cut.positions, cut.kind == "v")), cuts, None)

    def _plan(self, loss: CutLoss, cuts: list[TriedCut], timeline: Timeline | None) -> AutoPlan:
        chosen = cuts[0]

        def simulated() -> Timeline:
            if timeline is not None:
                return timeline
            trial = Trial(loss, self.request.num_microbatches, self.request.has_aux)
            return self._timeline(trial.plan(chosen.schedule), loss, chosen)

        return AutoPlan(loss, self.request, cuts, simulated, self.unit)

    def _link(self) -> Link:
        latency, bandwidth = self.request.latency, self.request.bandwidth
        if self.unit != FLOPS:
            return read_link(latency, bandwidth, self.unit)
        for name, value in (("latency", latency), ("bandwidth", bandwidth)):
            if isinstance(value, str) and not value.replace(".", "").isdecimal():
                raise TimesError(
                    f"{self.request.subject}: {name}={value} is in seconds, but work is counted in "
                    "operations: give times= too, or bytes and latency by operations, as numbers"
                )
        return read_link(latency, bandwidth)

    def _partitions(self) -> list[tuple[str, Partition]]:
        """Returns the cuts to simulate: the best by their closed bounds, and the even one."""
        count = len(self.request.slices)
        candidates = self.units.candidates(count)
        if len(candidates) < count - 1:
            units, products = self.units.count, len(self.units.products)
            raise ProgramError(
                f"{self.request.subject}{self._line()}: it can be cut at {len(candidates)} positions, too "
                f"few for {count} slices: its {units} operations have {products} products of matrices, and "
                f"there is no cut behind the last{self._largest(len(candidates) + 1)}"
            )
        best = best_partitions(self.units, candidates, self.machine, v=False, limit=_ROWS)
        self._check_work(best[0])
        partitions = [("row", partition) for partition in best]
        even = self.units.even(count)
        if even is not None:
            partition = Partition(self.machine.bound(self.units, even, range(count)), even)
            partitions = [p for p in partitions if p[1].positions != even]
            # After the best, which sets the mark for the others.
            partitions.insert(1, ("even", partition))
        if any("zb-v" in schedule for schedule in self.request.schedules):
            finer = self.units.candidates(2 * count)
            of_v = best_partitions(self.units, finer, self.machine, v=True, limit=_VS)
            partitions += [("v", partition) for partition in of_v]
        return partitions

    def _line(self) -> str:
        """Returns the line of the last operation of the loss."""
        lines = [node.line for node in self.flat.nodes[-1:]]
        return f" at {lines[0]}" if lines and lines[0] else ""

    def _smaller(self, tried: list[Partition]) -> list[tuple[str, Partition]]:
        """Returns cuts that are even in bytes: of parameters with their gradients, and of values alive."""
        count = len(self.request.slices)
        weighed = self.units.reweighed(bytes_kept(self.flat))
        candidates = [p for p in self.units.candidates(count) if 0 < weighed.before[p] < weighed.work]
        machine = dataclasses.replace(self.machine, speeds=(1.0,) * count)
        partitions = best_partitions(weighed, candidates, machine, v=False, limit=_ROWS)
        return [("row", p) for p in partitions if p.positions not in {other.positions for other in tried}]

    def _check_work(self, partition: Partition) -> None:
        """Rejects a cut in which a slice is idle."""
        loads = self.machine.loads(self.units, partition.positions, partition.slices())
        idle = sum(load <= _IDLE * sum(loads) / len(loads) for load in loads)
        if not idle:
            return
        raise ProgramError(f"{self.request.subject}{self._largest(len(loads) - idle)}".replace("; ", ": ", 1))

    def _largest(self, enough: int) -> str:
        """Returns the share of the largest operation in the work, if it exceeds the share of one slice."""
        work = self.units.before[1:] - self.units.before[:-1]
        if not work.sum() or work.max() * len(self.request.slices) <= work.sum():
            return ""
        line = self.flat.nodes[int(work.argmax())].line
        return (
            f"; one operation{f' at {line}' if line else ''} is {work.max() / work.sum():.0%} of the work: "
            f"{enough} {'slices do' if enough > 1 else 'slice does'} as well"
        )

    def _tried(self, partitions: list[tuple[str, Partition]]) -> Iterator[_Simulated | TriedCut]:
        """Yields each cut, simulated unless no schedule of it can be better than the best so far."""
        best = float("inf")
        for n, (kind, partition) in enumerate(partitions):
            if time.monotonic() - self.began > _PATIENCE:
                print(
                    f"pathways: {self.request.subject}: cut {n + 1} of {len(partitions)} ...", file=sys.stderr
                )
            positions = partition.positions
            loads = self.machine.loads(self.units, positions, partition.slices())
            crossing = tuple(int(self.units.alive[p]) for p in positions)
            cut = TriedCut(kind, positions, tuple(loads), crossing, partition.bound)
            # The even cut is always simulated, so that the plan is never worse than that.
            if kind != "even" and self._least_step(partition) >= best:
                yield cut
                continue
            simulated = self._simulated(cut, self._loss(partition))
            if simulated is not None:
                if simulated.cut.fits:
                    best = min(best, simulated.cut.step)
                yield simulated

    def _least_step(self, partition: Partition) -> float:
        """Returns a lower bound of the step under any schedule: a slice without gaps, once it can begin."""
        slices = partition.slices()
        loads = self.machine.loads(self.units, partition.positions, slices)
        bounds = []
        for slice in set(slices):
            stages = [n for n, other in enumerate(slices) if other == slice]
            busy = self.request.num_microbatches * sum(loads[n] for n in stages)
            bounds.append(busy + _LEAST_FORWARD * sum(loads[: stages[0]]))
        return max(bounds)

    def _loss(self, partition: Partition) -> CutLoss:
        slices = [self.request.slices[n] for n in partition.slices()]
        return CutLoss(self.flat, self.request.args, self.shapes, partition.positions, slices)

    def _simulated(self, cut: TriedCut, loss: CutLoss) -> _Simulated | None:
        """Returns the cut under its best schedule; None if no schedule fits."""
        trial = Trial(loss, self.request.num_microbatches, self.request.has_aux)
        results = []
        for schedule in self.request.schedules:
            if "search" not in schedule and ("zb-v" in schedule) != (cut.kind == "v"):
                continue
            try:
                plan = trial.plan(schedule)
            except ProgramError as error:
                self.refusals[str(error)] = None
                continue
            timeline = self._timeline(plan, loss, cut)
            peak = max(timeline.peak_bytes(slice) for slice in timeline.slices)
            done = msgspec.structs.replace(
                cut,
                schedule=schedule,
                step=timeline.step_time,
                bubble=timeline.mean_bubble,
                peak=peak,
                fits=self.request.max_bytes is None or peak <= self.request.max_bytes,
            )
            results.append(_Simulated(done, loss, timeline))
        return min(results, key=lambda result: result.cut.rank, default=None)

    def _timeline(self, plan: Plan, loss: CutLoss, cut: TriedCut) -> Timeline:
        """Returns the timeline of a step whose calls take the time of their units."""
        edges = [0, *cut.positions, self.units.count]
        factors = []
        for n, slice in enumerate(loss.slices):
            # Plans count operations by device: the factor scales operations of a stage to its time.
            flops = float(self.flops.before[edges[n + 1]] - self.flops.before[edges[n]]) / slice.size
            factors.append(cut.loads[n] / flops if flops else 1.0)
        times = TrialTimes(self.unit, tuple(factors), self.machine.link)
        return times.timeline(plan, f"simulated, times={self.unit}")

"""Comparison of policies: replays of a program under each of them, side by side."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence

from jaxlib.mlir import ir

from pathways.dialect import make_context
from pathways.dialect.verification.forms import stage_of
from pathways.passes.analysis.quantities import FLOPS, UNITS, TimesError
from pathways.passes.manager.base import Pass, PassFailure
from pathways.passes.manager.driver import Diagnostics, run_passes
from pathways.passes.pipeline import Options, Phase, phases_after
from pathways.passes.schedule.policies.registry import NAMES, PROGRAM, SEARCH
from pathways.passes.schedule.policies.request import RequestError, read_request
from pathways.passes.shard.halves.split_backward import SplitBackward
from pathways.runtime.plan.plan import Plan
from pathways.runtime.resources.tables import duration, duration_with_unit, percent, size, table
from pathways.runtime.simulate.replay import simulate, steady_step_time
from pathways.runtime.traces.timeline import Timeline
from pathways.tools.common.diagnostics import Printer
from pathways.tools.common.errors import UserError
from pathways.tools.common.source import parse, read_source
from pathways.tools.common.supervisor import doing
from pathways.tools.inputs.policies import named_policy
from pathways.tools.inputs.scheduled import (
    Model,
    common_times,
    link_of,
    plan_shown,
    policy_options,
    read_model,
)


def _time(time: float, unit: str) -> str:
    return duration(time, unit) if unit == UNITS else duration_with_unit(time, unit)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Replays of a program by each policy.

    Attributes:
      timelines: for each policy that fits the program its timeline, in the order of step times.
      refused: for each other policy why it does not fit, or the times that it lacks.
      steady: by policy the time of each of many consecutive steps; empty if not requested.
    """

    timelines: dict[str, Timeline]
    refused: dict[str, str]
    steady: dict[str, float]

    def __str__(self) -> str:
        slices = next(iter(self.timelines.values())).slices if self.timelines else ()
        steady = ("steady",) if self.steady else ()
        head = (
            "policy",
            "step time",
            *steady,
            *(f"{name} idle" for name in slices),
            *(f"{n} peak" for n in slices),
        )
        rows = [
            (
                policy,
                _time(timeline.step_time, timeline.unit),
                *(_time(self.steady[policy], timeline.unit) for _ in steady),
                *(percent(timeline.idle(name)) for name in slices),
                *(size(timeline.peak_bytes(name)) for name in slices),
                f"{len(timeline.transfers)}, {size(sum(event.nbytes for event in timeline.transfers))}",
            )
            for policy, timeline in self.timelines.items()
        ]
        lines = [table([(*head, "transfers"), *rows])] if rows else []
        lines += [f"{policy} {why}" for policy, why in self.refused.items()]
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Candidates:
    """Policies to compare, and their options.

    Attributes:
      policies: their names, or schedule files.
      options: the options of all of them but `program` and files, such as `max-live=4`.
      link: the latency and bandwidth of links, for policies that use times; empty for none.
      steps: the number of consecutive steps that are replayed; 1 for a step alone.
    """

    policies: Sequence[str] = NAMES
    options: str = ""
    link: tuple[str, str] = ("", "")
    steps: int = 1

    def requests(self) -> dict[str, Options]:
        """Returns the options of the compiler, by policy.

        Raises:
          UserError: the options cannot be read.
        """
        requested: dict[str, Options] = {}
        for policy in self.policies:
            if policy.endswith(".csv"):
                requested[policy] = Options(schedule_file=policy)
                continue
            options = "" if policy == PROGRAM else self.options
            try:
                request = read_request(f"{named_policy(policy)}({options})")
            except RequestError as error:
                raise UserError(str(error)) from None
            if policy == SEARCH and not request.times:
                # The limits that the replay uses, too.
                request = dataclasses.replace(request, times=UNITS)
            if request.times not in ("", FLOPS):
                request = dataclasses.replace(request, latency=self.link[0], bandwidth=self.link[1])
            requested[policy] = Options(policy=str(request))
        return requested


def compare_requested(options: argparse.Namespace, steps: int = 1) -> Comparison | None:
    """Compares the policies that the flags of a tool name, or all; see `compare`."""
    if options.compare and options.schedules:
        raise UserError("--compare and --schedule exclude each other: --compare covers all policies")
    with policy_options(options) as limits:
        candidates = Candidates(options.schedules or NAMES, limits, link_of(options), steps)
        return compare(options.input, candidates, lambda plan: read_model(common_times(options), plan))


def compare(path: str, candidates: Candidates, model: Callable[[Plan], Model]) -> Comparison | None:
    """Schedules a program by several policies; None after errors were printed.

    Args:
      path: the program, in the form 'placed' or one before it.
      model: returns the times and links for a plan, or raises `TimesError`.

    Raises:
      UserError: the file cannot be read, or holds a later form.
    """
    requests = candidates.requests()
    context = make_context()
    source = read_source(path)
    with Diagnostics(context, Printer(source)):
        try:
            module = parse(source, context)
            # Passes rely on it.
            run_passes(module, [])
        except (ir.MLIRError, PassFailure):
            return None
    form = stage_of(module)
    if not any(isinstance(each, SplitBackward) for each in _passes(phases_after(Options(), form))):
        raise UserError(
            f"'{source.name}' is in the form '{form}', in which it is too late to split backwards; "
            "policies are compared from the form 'placed', which pw-compile --compile-to=placed writes"
        )
    timelines: dict[str, Timeline] = {}
    refused: dict[str, str] = {}
    steady: dict[str, float] = {}
    text = module.operation.get_asm(enable_debug_info=True)
    for policy, requested in requests.items():
        doing(f"scheduling by {policy}")
        # Parsed again for each policy, since passes change the module.
        plan = _scheduled(ir.Module.parse(text, context), form, source.name, requested)
        if isinstance(plan, str):
            refused[policy] = f"does not fit: it {plan}"
            continue
        try:
            of = model(plan)
            timelines[policy] = simulate(plan, of.times, of.link, policy)
            if candidates.steps > 1:
                steady[policy] = steady_step_time(plan, of.times, of.link, candidates.steps)
        except TimesError as error:
            # The times may be of a run by another policy.
            refused[policy] = f"cannot be replayed: {error}"
    times_of = steady or {policy: timeline.step_time for policy, timeline in timelines.items()}
    in_order = sorted(timelines, key=times_of.__getitem__)
    return Comparison({policy: timelines[policy] for policy in in_order}, refused, steady)


def _scheduled(module: ir.Module, form: str | None, name: str, requested: Options) -> Plan | str:
    """Returns the plan of a program by a policy or a file, or why that does not fit it; else UserError."""
    with Diagnostics(module.context) as seen:
        try:
            for each in _passes(phases_after(requested, form)):
                run_passes(module, [each], verify_each=False)
        except PassFailure:
            message = seen.errors[0].message
            start = f"cannot be scheduled by '{requested.policy}', which "
            if start not in message:
                raise UserError(
                    f"'{name}', by {requested.policy or requested.schedule_file}: {message}"
                ) from None
            return message.partition(start)[2]
    return plan_shown(module, name)


def _passes(phases: list[Phase]) -> list[Pass]:
    """Returns the passes of some phases."""
    return [each for phase in phases for each in phase.passes]

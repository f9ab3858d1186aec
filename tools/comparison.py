"""A program under every policy of its loops, side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from jaxlib.mlir import ir

from pathways.dialect import form_of, make_context
from pathways.passes.base import Pass, PassFailure
from pathways.passes.driver import Diagnostics, run_passes
from pathways.passes.pipeline import Options, Phase, phases_behind
from pathways.passes.place.split_backward import SplitBackward
from pathways.passes.schedule.policies.registry import NAMES
from pathways.passes.util.quantities import TimesError
from pathways.runtime.plan.lower import plan_of
from pathways.runtime.plan.plan import Plan
from pathways.runtime.timelines.tables import duration, percent, size, table
from pathways.runtime.timelines.timeline import Timeline
from pathways.tools.diagnostics import Printer
from pathways.tools.errors import UserError
from pathways.tools.files import read_input
from pathways.tools.source import Source, parse
from pathways.tools.supervisor import doing


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The replays of a program by each policy.

    Attributes:
      timelines: by policy, those that fit the program, in the order of step times.
      refused: of each other policy why it does not fit, or what the times lack for it.
    """

    timelines: dict[str, Timeline]
    refused: dict[str, str]

    def __str__(self) -> str:
        slices = next(iter(self.timelines.values())).slices if self.timelines else ()
        head = ("policy", "step time", *(f"{name} idle" for name in slices), *(f"{n} peak" for n in slices))
        rows = [
            (
                policy,
                duration(timeline.step_time, timeline.unit),
                *(percent(timeline.bubble(name)) for name in slices),
                *(size(timeline.peak_bytes(name)) for name in slices),
                f"{len(timeline.transfers)}, {size(sum(event.nbytes for event in timeline.transfers))}",
            )
            for policy, timeline in self.timelines.items()
        ]
        lines = [table([(*head, "transfers"), *rows])] if rows else []
        lines += [f"{policy} {why}" for policy, why in self.refused.items()]
        return "\n".join(lines)


def compare(path: str, replay: Callable[[Plan], Timeline]) -> Comparison | None:
    """Schedules a program by every policy; None after errors were printed.

    Args:
      path: the program, in the form 'placed' or one before it.
      replay: what makes a timeline of a plan, or raises `TimesError`.

    Raises:
      UserError: when the file cannot be read, or holds a later form.
    """
    context = make_context()
    source = Source("<stdin>" if path == "-" else path, read_input(path))
    with Diagnostics(context, Printer(source)):
        try:
            module = parse(source, context)
        except ir.MLIRError:
            return None
    form = form_of(module)
    if not any(isinstance(each, SplitBackward) for each in _passes(phases_behind(Options(), form))):
        raise UserError(
            f"'{source.name}' is in the form '{form}', in which backwards are no longer cut in halves; "
            "--compare takes the form 'placed', which pw-compile --compile-to=placed writes"
        )
    timelines: dict[str, Timeline] = {}
    refused: dict[str, str] = {}
    text = module.operation.get_asm(enable_debug_info=True)
    for policy in NAMES:
        doing(f"scheduling by {policy}")
        copy = ir.Module.parse(text, context)
        with Diagnostics(context) as seen:
            try:
                for each in _passes(phases_behind(Options(policy=policy), form)):
                    run_passes(copy, [each], verify_each=False)
            except PassFailure:
                message = seen.errors[0].message
                start = f"cannot be scheduled by '{policy}', which "
                if start not in message:
                    raise UserError(f"'{source.name}', by {policy}: {message}") from None
                refused[policy] = f"does not fit: it {message.partition(start)[2]}"
                continue
        name = copy.operation.attributes
        plan = plan_of(copy, name["sym_name"].value if "sym_name" in name else "main", proved=True)
        try:
            timelines[policy] = replay(plan)
        except TimesError as error:
            # The times may be those of a run by another policy.
            refused[policy] = f"cannot be replayed: {error}"
    in_order = sorted(timelines, key=lambda policy: timelines[policy].step_time)
    return Comparison({policy: timelines[policy] for policy in in_order}, refused)


def _passes(phases: list[Phase]) -> list[Pass]:
    """The passes of some phases."""
    return [each for phase in phases for each in phase.passes]

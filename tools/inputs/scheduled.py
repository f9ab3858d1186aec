"""Inputs of the tools on schedules: a scheduled program, durations, and measured runs."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from jaxlib.mlir import ir

from pathways.dialect import make_context
from pathways.dialect.operations.operation import symbol_name
from pathways.dialect.verification.forms import SCHEDULED, stage_of
from pathways.passes.analysis.links import Link, read_link
from pathways.passes.analysis.measured.durations import measured_durations
from pathways.passes.analysis.measured.events import EventLog
from pathways.passes.analysis.measured.trace_file import TraceError, is_trace, read_trace
from pathways.passes.analysis.quantities import FLOPS, UNITS, TimesError
from pathways.passes.manager.base import PassFailure
from pathways.passes.manager.driver import Diagnostics, run_passes
from pathways.passes.schedule.policies.registry import SEARCH
from pathways.passes.schedule.policies.request import RequestError, read_request
from pathways.passes.schedule.verify_schedule import VerifySchedule
from pathways.runtime.plan.lower import plan_of
from pathways.runtime.plan.plan import Plan
from pathways.runtime.plan.sub_programs import shown_program
from pathways.runtime.simulate.replay import simulate
from pathways.runtime.simulate.times import ExpectedTimes, ReplayTimes, stated_times, times_in, title_of
from pathways.runtime.traces.timeline import Timeline
from pathways.tools.common.diagnostics import Printer
from pathways.tools.common.errors import UserError
from pathways.tools.common.files import BUNDLE, read_input
from pathways.tools.common.source import parse, read_source
from pathways.tools.common.supervisor import doing
from pathways.tools.inputs.untrusted_bundles import plan_in


def read_plan(path: str) -> Plan | None:
    """Returns the plan of a scheduled program, or of the one in a bundle; None after errors were printed.

    Raises:
      UserError: the file cannot be read, or holds another form.
    """
    if path.endswith(BUNDLE):
        return plan_in(path)
    context = make_context()
    source = read_source(path)
    with Diagnostics(context, Printer(source)):
        try:
            module = parse(source, context)
            form = stage_of(module)
            if form != SCHEDULED.name:
                problem = "says no form (pw.form)" if form is None else f"is in the form '{form}'"
                raise UserError(
                    f"'{source.name}' {problem}, not '{SCHEDULED.name}'; compile it with pw-compile, or run "
                    "pw-schedule, pw-plan-memory and pw-verify-schedule"
                )
            doing("checking the schedule")
            # The file may have been edited since it was proved.
            run_passes(module, [VerifySchedule()])
        except (ir.MLIRError, PassFailure):
            return None
        doing("making the plan")
        return plan_shown(module, source.name)


def plan_shown(module: ir.Module, source_name: str) -> Plan:
    """Returns the plan of a scheduled program, or of the first repeated sub-program if it has sub-programs.

    The verifier must have accepted the module.

    Raises:
      UserError: the program has no plan; names the source.
    """
    subprogram = shown_program(module)
    # The name of its runs in a trace.
    names = [symbol_name(each.operation.opview) for each in dict.fromkeys([module, subprogram])]
    try:
        return plan_of(subprogram, "_".join(filter(None, names)) or "main", proved=True)
    except ValueError as error:
        raise UserError(f"'{source_name}': {error}") from None


@dataclasses.dataclass(frozen=True)
class Model:
    """Times and links of a replay.

    Attributes:
      times: the duration of launches.
      link: the links between slices.
    """

    times: ReplayTimes
    link: Link
    title: str


def read_model(options: argparse.Namespace, plan: Plan) -> Model:
    """Returns the durations and links that the flags specify.

    Raises:
      UserError: names the file and the entry that is wrong.
    """
    try:
        stated = stated_times(options.times, plan)
    except TimesError as error:
        raise UserError(f"--{error}") from None
    if stated is None:
        times, name = _read_times(options.times, plan), f"times={Path(options.times).name}"
    else:
        times, name = stated
    try:
        link = read_link(options.latency, options.bandwidth, times.unit)
    except TimesError as error:
        raise UserError(f"--{error}") from None
    share = options.taken
    if share < 1:
        times, name = ExpectedTimes(times, share), f"{name}, taken={share:g}"
    return Model(times, link, title_of(name, link, planned=stated is not None and share == 1))


def common_times(options: argparse.Namespace) -> argparse.Namespace:
    """Returns the flags with times for a comparison: by default the times in the limits, or units."""
    times = options.times
    if times is None and options.limits:
        with contextlib.suppress(RequestError):  # Reported when policies are requested.
            times = read_request(f"{SEARCH}({options.limits})").times or None
    return argparse.Namespace(**{**vars(options), "times": times or UNITS})


def _read_times(path: str, plan: Plan) -> ReplayTimes:
    try:
        return times_in(read_input(path), plan)
    except TimesError as error:
        raise UserError(f"'{path}': {error}") from None


def link_of(options: argparse.Namespace) -> tuple[str, str]:
    """Returns the latency and bandwidth in the flags, as a request has them."""
    return options.latency or "", options.bandwidth or ""


@contextlib.contextmanager
def policy_options(options: argparse.Namespace) -> Iterator[str]:
    """Yields the limits of policies in the flags, as a request has them; a file of times exists during the
    block.

    Raises:
      UserError: the times cannot be read.
    """
    options_text = [options.limits] if options.limits else []
    if options.times in (None, FLOPS, UNITS):
        yield ", ".join([*options_text, *([] if options.times is None else [f"times={options.times}"])])
        return
    with tempfile.TemporaryDirectory(prefix="pathways-") as folder:
        file = Path(folder) / "times.json"
        file.write_bytes(durations_text(options.times))
        yield ", ".join([*options_text, f"times={file}"])


def durations_text(path: str) -> bytes:
    """Returns the durations in a JSON file, or in the trace of a run, as JSON.

    Raises:
      UserError: names the file.
    """
    if path in (FLOPS, UNITS):
        raise UserError(f"--save-times writes the durations of a trace, and '{path}' is none")
    data = read_input(path)
    if not is_trace(data):
        return data
    return json.dumps(measured_durations(read_timelines(path)), indent=2).encode() + b"\n"


def read_timelines(path: str) -> list[EventLog]:
    """Returns all steps in a trace file.

    Raises:
      UserError: names the file.
    """
    try:
        return read_trace(read_input(path))
    except TraceError as error:
        raise UserError(f"'{path}': {error}") from None


def simulated(plan: Plan, model: Model) -> Timeline:
    """Returns the replay of a plan.

    Raises:
      UserError: a launch has no duration.
    """
    try:
        return simulate(plan, model.times, model.link, model.title)
    except TimesError as error:
        raise UserError(str(error)) from None

"""What the tools on schedules read: a scheduled program, durations, and measured runs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from pathways.tools import supervisor
from pathways.tools.files import UserError, read_input

if TYPE_CHECKING:
    from pathways.runtime.plan.plan import Plan
    from pathways.runtime.simulate.links import Link
    from pathways.runtime.simulate.times import Times
    from pathways.runtime.timelines.events import EventLog
    from pathways.runtime.timelines.timeline import Timeline

TIMES_HELP = """\
times:
  A JSON file of durations. All of it is optional; the most specific entry counts.
    {"phases": {"fwd": "1.2ms", "bwd": "2.4ms", "bwd.input": "1ms", "recompute": "1ms", "glue": 0},
     "stages": {"3": {"fwd": "2ms"}},
     "computations": {"front": "1ms"},
     "launches": {"front[3]": "5ms"}}
  A number counts time units, a string has a suffix (s, ms, us, ns); the two do not mix. Without the file a
  placed call takes one unit, glue none, and a launch that several calls were fused into what they take
  together. A trace of a measured run serves as well: each launch takes the median of its durations there.
"""


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are those of every tool, with the flags that say how long things take."""

    def __init__(self, tool: str, usage: str, description: str) -> None:
        super().__init__(
            tool,
            usage=usage,
            description=description,
            epilog=TIMES_HELP,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add = self.add_argument
        add("--times", metavar="FILE", help="how long launches take: a JSON file, or the trace of a run")
        add("--latency", metavar="TIME", help="of a link between two slices, such as 5us; default: none")
        add("--bandwidth", metavar="RATE", help="of a link, such as 10GB/s or 200Gbit/s; default: no limit")

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def read_plan(path: str) -> Plan | None:
    """The plan of a program in scheduled form; None after errors were printed.

    Raises:
      UserError: when the file cannot be read, or holds another form.
    """
    from jaxlib.mlir import ir

    from pathways.dialect import form_of, make_context
    from pathways.passes.base import PassFailure
    from pathways.passes.driver import Diagnostics, run_passes
    from pathways.passes.schedule.verify_schedule import VerifySchedule
    from pathways.runtime.plan.lower import plan_of
    from pathways.tools.diagnostics import Printer
    from pathways.tools.source import Source, parse

    context = make_context()
    source = Source("<stdin>" if path == "-" else path, read_input(path))
    with Diagnostics(context, Printer(source)):
        try:
            module = parse(source, context)
            form = form_of(module)
            if form != "scheduled":
                found = "has no pw.form" if form is None else f"is in the form '{form}'"
                raise UserError(
                    f"'{source.name}' {found}, not 'scheduled'; compile it with pw-compile, or run "
                    "pw-schedule, pw-plan-memory and pw-verify-schedule"
                )
            supervisor.doing("checking the schedule")
            # The file may have been edited since it was proved.
            run_passes(module, [VerifySchedule()])
        except (ir.MLIRError, PassFailure):
            return None
        supervisor.doing("making the plan")
        name = module.operation.attributes
        return plan_of(module, name["sym_name"].value if "sym_name" in name else "main", proved=True)


def read_model(options: argparse.Namespace, plan: Plan) -> tuple[Times, Link]:
    """The durations and links that the flags ask for.

    Raises:
      UserError: names the file and the entry that is wrong.
    """
    from pathways.runtime.simulate.links import read_link
    from pathways.runtime.simulate.quantities import TimesError
    from pathways.runtime.simulate.times import Times

    times = Times() if options.times is None else _read_times(options.times, plan)
    try:
        return times, read_link(options.latency, options.bandwidth, times.unit)
    except TimesError as error:
        raise UserError(f"--{error}") from None


def _read_times(path: str, plan: Plan) -> Times:
    from pathways.runtime.simulate.quantities import TimesError
    from pathways.runtime.simulate.times import measured_times, read_times
    from pathways.runtime.timelines.trace_file import TraceError, read_trace

    data = read_input(path)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        if data.lstrip().startswith(b"["):
            found = []
        else:
            raise UserError(f"'{path}' is no JSON: {error}") from None
    try:
        if isinstance(found, list):
            return measured_times(read_trace(data), plan)
        return read_times(found, plan)
    except (TimesError, TraceError) as error:
        raise UserError(f"'{path}': {error}") from None


def read_timelines(paths: Sequence[str]) -> list[EventLog]:
    """All steps in trace files.

    Raises:
      UserError: names the file.
    """
    from pathways.runtime.timelines.trace_file import TraceError, read_trace

    found: list[EventLog] = []
    for path in paths:
        try:
            found += read_trace(read_input(path))
        except TraceError as error:
            raise UserError(f"'{path}': {error}") from None
    return found


def simulated(plan: Plan, times: Times, link: Link, title: str = "") -> Timeline:
    """The replay of a plan.

    Raises:
      UserError: when the durations say nothing of a launch.
    """
    from pathways.runtime.simulate.quantities import TimesError
    from pathways.runtime.simulate.replay import simulate

    try:
        return simulate(plan, times, link, title)
    except TimesError as error:
        raise UserError(str(error)) from None


def version_of(tool: str) -> str:
    """What `--version` prints."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"{tool} {version('pathways-mlir')}\n"
    except PackageNotFoundError:
        return f"{tool} (not installed)\n"


def run(tool: str, main: Callable[[Sequence[str]], int], arguments: Sequence[str] | None) -> int:
    """Runs a tool; see `pw_opt.main` for the arguments."""
    import sys

    def guarded(given: Sequence[str]) -> int:
        return supervisor.in_one_line(tool, lambda: main(given))

    if arguments is None:
        return supervisor.supervise(tool, lambda: guarded(sys.argv[1:]))
    return guarded(arguments)

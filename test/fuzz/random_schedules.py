"""Harness that compares the verdict on random schedule files with a run of their slices.

  python test/fuzz/random_schedules.py --seed 0 --count 2000 --jobs 2 --keep build/fuzz/schedules

Number n of a seed is always the same. Each file orders a pipeline; `schedules.faults_of` runs it, and
`pw-schedule` with `pw-verify-schedule` must accept exactly those that end, and name a mistake in the others.
In accepted ones, launches then trade places, and the proof is compared with a run of all events. With
`--execute`, every fiftieth program is built with JAX and compared with the scan. The exit code is 1 after a
difference, a traceback or a crash.
"""

from __future__ import annotations

import collections
import functools
import json
import os
import random
import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from flags import parser_of
from forked import run_all
from jaxlib.mlir import ir
from schedules import ScheduleCase, random_case, random_line, text_of

from pathways.dialect import LaunchOp, make_context
from pathways.dialect.relations.order import DeadlockError, Event, data_events, events_of, proved_order
from pathways.dialect.relations.program_view import read_program
from pathways.passes.manager.base import PassFailure
from pathways.passes.manager.driver import Diagnostics, run_passes
from pathways.passes.schedule.order.schedule import Schedule
from pathways.passes.schedule.verify_schedule import VerifySchedule

BATCH = 100
SECONDS = 120.0
"""Limit of processor time of a batch."""

MEMORY = 64 << 30
"""Limit of address space of a batch in bytes: XLA reserves much more than it uses."""

_MESSAGES = {
    "is not an action|is communication": "malformed",
    "there is no stage|there is no microbatch|has no backward|is not split|has no forward": "unknown",
    r"stage \d+ is on @": "misplaced",
    "is in row .* already": "doubled",
    "missing": "missing",
    "comes before|deadlock": "order",
    r"expected \d+ rows?, for": "rows",
}
_UNREADABLE = "is not UTF-8 text|: row .*(quote|line|delimiter|NUL|end of data|new-line|expected after)"

Outcome = tuple[str, str]
"""Kind, `taken`, `refused`, or a failure: `wrong`, `traceback`, `crash`, `hang`; and details."""


def main() -> int:
    """Runs the harness; returns its exit code."""
    parser = parser_of(__doc__, "schedules", 2000)
    parser.add_argument(
        "--execute",
        type=int,
        default=50,
        metavar="N",
        help="execute one of N, 0 for none (default: %(default)s)",
    )
    options = parser.parse_args()
    return fuzz(options.seed, options.first, options.count, options.jobs, options.keep, options.execute)


def fuzz(seed: int, first: int, count: int, jobs: int, keep: Path, executed: int = 0) -> int:
    """Runs cases, one of every `executed` with JAX; returns the exit code."""
    batches = (range(n, min(n + BATCH, first + count)) for n in range(first, first + count, BATCH))
    tasks = ((batch, functools.partial(_examine_batch, seed, batch, executed)) for batch in batches)
    outcomes: dict[int, Outcome] = {}
    started = time.monotonic()
    for numbers, ending in run_all(tasks, jobs, SECONDS, MEMORY):
        outcomes |= _read(ending.folder)
        stopped = next((n for n in numbers if n not in outcomes), None)
        if stopped is not None:
            kind = "hang" if ending.late else "crash"
            outcomes |= {n: (kind, ending.stderr[-2000:]) for n in numbers if n >= stopped}
    return report(outcomes, seed, keep, time.monotonic() - started)


def report(outcomes: dict[int, Outcome], seed: int, keep: Path, seconds: float) -> int:
    """Prints the count of each ending, keeps cases that failed, and returns the exit code."""
    kinds = collections.Counter(kind for kind, _ in outcomes.values())
    print(f"{len(outcomes)} schedules, {len(outcomes) / max(seconds, 1e-3):.0f} a second")
    for kind, number in kinds.most_common():
        print(f"  {kind:<24} {number:>6}  {number / len(outcomes):.1%}")
    failures = {n: o for n, o in sorted(outcomes.items()) if o[0] in ("wrong", "traceback", "crash", "hang")}
    for n, (kind, message) in failures.items():
        print(f"{n}: {kind} {message.strip().splitlines()[0]}")
        keep.mkdir(parents=True, exist_ok=True)
        case = case_of(seed, n)
        (keep / f"{kind}.{n}.txt").write_text(f"{message}\n{case}\n")
        (keep / f"{kind}.{n}.mlir").write_text(text_of(case.line))
        (keep / f"{kind}.{n}.csv").write_bytes(case.text)
    return 1 if failures else 0


def case_of(seed: int, number: int) -> ScheduleCase:
    """Returns the case of a seed with a number."""
    rng = random.Random(f"{seed}/{number}")
    return random_case(rng, random_line(rng))


def _read(folder: Path) -> dict[int, Outcome]:
    path = folder / "outcomes"
    lines = path.read_text().split("\n") if path.exists() else []
    return {number: (kind, message) for number, kind, message in map(json.loads, filter(None, lines))}


def _examine_batch(seed: int, batch: range, executed: int, folder: Path, note: Callable[[str], None]) -> None:
    """Runs a batch in a child."""
    os.chdir(folder)
    context = make_context()
    with Path("outcomes").open("a") as file:
        for number in batch:
            note(str(number))
            case = case_of(seed, number)
            try:
                outcome = examine(case, random.Random(number), context)
                if (
                    executed
                    and number % executed == 0
                    and (not case.line.split or case.line.weight_first)
                    and case.faults is not None
                ):
                    outcome = _executed(case) or outcome
            except Exception as error:
                outcome = "traceback", f"{error}\n{traceback.format_exc()}"
            file.write(json.dumps([number, *outcome]) + "\n")
            file.flush()


def _executed(case: ScheduleCase) -> Outcome | None:
    """Returns the failure of a program under the order, if there is one."""
    # Imported here, since a process that forks must not import JAX.
    import executed_schedules

    message = executed_schedules.verdict(case, Path("order.csv"))
    return ("wrong", message) if message else None


def examine(case: ScheduleCase, rng: random.Random, context: ir.Context) -> Outcome:
    """Compares the verdicts on one file."""
    Path("order.csv").write_bytes(case.text)
    module = ir.Module.parse(text_of(case.line), context)
    with Diagnostics(context) as seen:
        try:
            run_passes(module, [Schedule(file="order.csv"), VerifySchedule()])
        except PassFailure:
            return _judge_refusal(case, seen.errors[0].message)
    if case.faults:
        return "wrong", f"taken, although it has faults: {', '.join(case.faults)}"
    different = _trade_places(module, rng)
    return ("wrong", different) if different else ("taken", "")


def _judge_refusal(case: ScheduleCase, message: str) -> Outcome:
    kinds = [kind for words, kind in _MESSAGES.items() if re.search(words, message)]
    if case.faults is None:
        known = kinds or re.search(_UNREADABLE, message)
        return ("refused", "changed") if known else ("wrong", f"other words: {message}")
    if not case.faults:
        return "wrong", f"refused, although it can be run: {message}"
    if not kinds:
        return "wrong", f"other words: {message}"
    if not case.faults & set(kinds):
        return "wrong", f"refused for {kinds}, but the faults are {sorted(case.faults)}: {message}"
    return "refused", kinds[0]


def _trade_places(module: ir.Module, rng: random.Random) -> str:
    """Swaps launches and sends of a slice; returns the difference between the proof and a run."""
    for _ in range(4):
        with module.context:
            slices: dict[str, list[Event]] = {}
            for event in data_events(read_program(module)):
                slices.setdefault(event.slice, []).append(event)
            a, b = (rng.choice(rng.choice(list(slices.values()))) for _ in range(2))
            if a.slice != b.slice:
                continue
            a.op.order, b.op.order = b.op.order, a.op.order
            try:
                proved_order(events_of(read_program(module)))
                proved = True
            except DeadlockError:
                proved = False
            if proved != _runs(module):
                verdict = "proved, but it gets stuck" if proved else "refused by the proof, but it ends"
                return f"{verdict}: {module}"
    return ""


def _runs(module: ir.Module) -> bool:
    """Returns whether all events end, where slices are processes that block, and channels are FIFO queues."""
    events = data_events(read_program(module))
    channels = {op.sym_name: op.capacity for op in module.body.operations if op.name == "pw.channel"}
    queues: dict[str, list[Event]] = {}
    for event in sorted(events, key=lambda event: event.order or 0):
        queues.setdefault(event.slice, []).append(event)
    line: dict[str, list[Event]] = {}
    for queue in queues.values():
        for event in queue:
            if event.kind == "send":
                line.setdefault(event.op.channel, []).append(event)
    makers = {result: event for event in events for result in event.op.results}
    position = dict.fromkeys(queues, 0)
    first_reader: dict[int, int] = {}
    for queue in queues.values():
        for at, event in enumerate(queue):
            for value in event.op.operands:
                if value in makers and makers[value].kind == "send" and isinstance(event.op, LaunchOp):
                    first_reader.setdefault(id(makers[value]), at)

    sent: dict[str, int] = dict.fromkeys(channels, 0)
    received: dict[str, int] = dict.fromkeys(channels, 0)
    done: set[int] = set()
    arrived: set[int] = set()

    def receive() -> bool:
        moved = False
        for name, members in line.items():
            while received[name] < sent[name]:
                value = members[received[name]]
                if position[value.op.slice] < first_reader.get(id(value), 0):
                    break
                received[name] += 1
                arrived.add(id(value))
                moved = True
        return moved

    def can_run(event: Event) -> bool:
        for value in event.op.operands:
            maker = makers.get(value)
            if maker is not None and id(maker) not in (arrived if maker.kind == "send" else done):
                return False
        if event.kind == "launch":
            return True
        name = event.op.channel
        return line[name][sent[name]] is event and sent[name] - received[name] < channels[name]

    moved = True
    while moved:
        moved = receive()
        for name, queue in queues.items():
            while position[name] < len(queue) and can_run(event := queue[position[name]]):
                if event.kind == "send":
                    sent[event.op.channel] += 1
                done.add(id(event))
                position[name] += 1
                moved = True
    return all(position[name] == len(queue) for name, queue in queues.items())


if __name__ == "__main__":
    sys.exit(main())

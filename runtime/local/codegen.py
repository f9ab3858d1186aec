"""Generator of one straight-line Python function for the steps of a plan.

Everything that a step needs is decided before: the function only launches, copies and deletes. Its locals are
registers: a slot gets the lowest free one, which keeps their number small and the bytecode short.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
import linecache
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

from pathways.passes.analysis.measured.events import launch_name
from pathways.runtime.plan.plan import Launch, Plan, Receive, Release, Send, Slot, Step, Transfer

Arrays = list[Any]

SOURCE_NAME = "<pathways program "
"""Prefix of the file names of generated functions in tracebacks."""

_NOTES_PER_FLUSH = 256
"""Number of notes that are flushed at once. A flush wakes threads, which delay the one that issues steps."""


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """Functions of one launch that the generated function calls.

    Attributes:
      execute: runs the computation on a list of arrays.
      handlers: for each result, the function that wraps its buffers; None if `execute` returns the results.
      keep_token: registers the token of an execution with side effects; None for a computation without any.
    """

    execute: Callable[..., Any]
    handlers: Sequence[Any] | None
    keep_token: Callable[[Any], None] | None = None


class StepTarget(Protocol):
    """Devices that the generated function is bound to. Equal requests should return identical objects.

    Attributes:
      constants: the arrays in slots that the caller does not pass.
      order: a context manager that is entered while the steps are issued; None for none.
      span: returns the context in which a step with that name is issued, while a profile is recorded.
      is_profiled: returns whether a profile is recorded, called once in each call; None for never.
      explain: called with the lines of the function, an exception that stopped it, and the arrays that it was
        called with; may raise a better one.
    """

    constants: Mapping[Slot, Any]
    order: Any = None
    span: Callable[[str], Any]
    is_profiled: Callable[[], bool] | None = None
    explain: Callable[[Mapping[int, Line], Exception, Arrays], None] | None = None

    @property
    def copy_arrays(self) -> Callable[..., Any]:
        """Function that copies a list of arrays to devices, as `pjrt.copy_arrays`."""

    def kernel(self, launch: Launch) -> Kernel:
        """Returns the kernel of a launch."""

    def copies(self, transfers: Sequence[Transfer]) -> tuple[Any, ...]:
        """Returns the arguments of `copy_arrays`, after the arrays, for all these transfers at once."""

    def routed(self, transfer: Transfer) -> Callable[[Arrays], Arrays] | None:
        """Returns a function for a transfer of single shards; None for one that `copy_arrays` can do."""

    def finish(self, result: int, slice: str) -> Callable[[Any], Any] | None:
        """Returns the function that finishes a result of the program; None if it needs none."""


class HostTarget(StepTarget, Protocol):
    """Devices that the generated function of a host program is bound to."""

    def send(self, send: Send) -> Callable[[Arrays], None]:
        """Returns a function that offers arrays, one for each operand, to another host. It does not wait."""

    def receive(self, receive: Receive) -> Callable[[], Arrays]:
        """Returns a function that requests arrays from another host; they may be pending when it returns."""


@dataclasses.dataclass(frozen=True)
class Line:
    """Line of the generated function.

    Attributes:
      label: a description of the line.
      places: the names of the variables of these slots.
      step: the launch, the send, the receive, or the first of the transfers; None for lines after all steps.
      written: the names of the variables of its results, by slot.
    """

    label: str
    reads: tuple[Slot, ...]
    places: tuple[str, ...] = ()
    step: Launch | Transfer | Send | Receive | None = None
    written: Mapping[Slot, str] = dataclasses.field(default_factory=dict)


class CallObserver(Protocol):
    """Observer of one call of a function that reports its steps.

    Attributes:
      first_launch_id: the number to add to the number of a step for the `launch_id` of its launch.
    """

    first_launch_id: int

    def note(self, report: tuple[int, int, tuple[Any, ...]]) -> None:
        """Records the number of a step, the time of its dispatch, and tokens or arrays to wait for."""

    def flush(self) -> None:
        """Processes the notes so far; called from time to time, and after the last note."""


class StepObserver(Protocol):
    """Observer of a function that reports its steps."""

    def begin(self) -> CallObserver:
        """Returns the observer of a new call."""

    def now(self) -> int:
        """Returns the time of a clock."""

    def is_awaitable(self, slot: Slot) -> bool:
        """Returns whether an array can be waited for at any time, since no later step donates it."""


@dataclasses.dataclass(frozen=True, eq=False)
class GeneratedFunction:
    """Generated function, with its source and its lines by number."""

    run: Callable[[Arrays], Arrays]
    source: str
    lines: Mapping[int, Line]


def generate(
    plan: Plan, target: StepTarget | HostTarget, observer: StepObserver | None = None
) -> GeneratedFunction:
    """Generates `run(arrays) -> results`.

    The function accepts one array for each slot of each argument that the caller passes, and returns a list
    of one array for each slot of each result, both in the order of the plan.

    Args:
      target: the devices that the function is bound to.
      observer: the observer of each step, called within its span; None for a function that reports nothing.
    """
    if observer is not None:
        return _generate(_ReportWriter(plan, target, observer))
    # Generated at the first profile: most processes never record one.
    with_spans = functools.cache(lambda: _generate(_SpanWriter(plan, target)).run)
    return _generate(_Writer(plan, target), lambda arrays: with_spans()(arrays))


def _generate(writer: _Writer, profiled: Callable[[Arrays], Arrays] | None = None) -> GeneratedFunction:
    """Generates the function of a writer; while a profile is recorded, it calls `profiled` instead."""
    plan, target = writer.plan, writer.target
    order, explain = target.order, target.explain
    copy = writer.value("copy", target.copy_arrays)
    depth = 1 + (explain is not None) + (order is not None)
    writer.line(0, "def run(arrays):")
    if profiled is not None and target.is_profiled is not None:
        writer.line(1, f"if {writer.value('when', target.is_profiled)}():")
        writer.line(2, f"return {writer.value('profiled', profiled)}(arrays)")
    if explain is not None:
        writer.line(1, "try:")
    if order is not None:
        writer.line(depth - 1, f"with {writer.value('order', order)}:")
    writer.indent = depth
    writer.begin()
    writer.arguments()
    for group in _groups(plan.steps):
        match group[0]:
            case Launch() as launch:
                writer.launch(launch)
            case Send() as send:
                writer.send(send)
            case Receive() as receive:
                writer.receive(receive)
            case _:
                writer.transfers([step for step in group if isinstance(step, Transfer)], copy)
                for step in group:
                    if isinstance(step, Release):
                        writer.release(step)
    writer.end()
    writer.results()
    if explain is not None:
        writer.line(1, "except Exception as error:")
        writer.fail()
        writer.line(2, f"{writer.value('explain', functools.partial(explain, writer.steps))}(error, arrays)")
        writer.line(2, "raise")
    return writer.compile()


def _groups(steps: Sequence[Step]) -> list[list[Step]]:
    """Groups steps: a launch, send or receive alone, consecutive transfers together with their releases.

    A transfer of the result of another one starts a new group, since one call does all transfers of a group.
    """
    groups: list[list[Step]] = []
    arrived: set[Slot] = set()
    for step in steps:
        follows = isinstance(step, Transfer) and not arrived.isdisjoint(step.operands)
        alone = isinstance(step, Launch | Send | Receive)
        if alone or follows or not groups or not isinstance(groups[-1][0], Transfer):
            groups.append([])
            arrived.clear()
        groups[-1].append(step)
        if isinstance(step, Transfer):
            arrived.update(step.results)
    return groups


class _Writer:
    """Writer of the source: its lines, the global values that they name, and the register of each slot."""

    def __init__(self, plan: Plan, target: StepTarget | HostTarget) -> None:
        self.plan = plan
        self.target = target
        self.indent = 0
        self.lines: list[str] = []
        self.steps: dict[int, Line] = {}
        self.values: dict[str, Any] = {}
        self.names: dict[int, str] = {}
        self.places: dict[Slot, str] = {}
        self.written: dict[Slot, str] = {}
        self.free: list[int] = []
        self.registers = itertools.count()
        self.constants = {slot: self.value("constant", array) for slot, array in target.constants.items()}
        self.places.update(self.constants)

    def value(self, kind: str, value: Any) -> str:
        """Returns the global name of a value, the same for the same object."""
        name = self.names.get(id(value))
        if name is None:
            name = self.names[id(value)] = f"{kind}{len(self.values)}"
            self.values[name] = value
        return name

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def step(
        self,
        text: str,
        label: str,
        reads: Sequence[Slot],
        places: Sequence[str] = (),
        step: Launch | Transfer | Send | Receive | None = None,
    ) -> None:
        label = " ".join(label.split())
        self.lines.append(f"{'    ' * self.indent}{text}  # {label}")
        self.steps[len(self.lines)] = Line(label, tuple(reads), tuple(places), step, self.written)
        self.written = {}

    def allocate(self, slot: Slot) -> str:
        number = heapq.heappop(self.free) if self.free else next(self.registers)
        self.places[slot] = self.written[slot] = f"v{number}"
        return f"v{number}"

    def read(self, slots: Sequence[Slot]) -> str:
        return f"[{', '.join(self.places[slot] for slot in slots)}]"

    def write(self, slots: Sequence[Slot]) -> str:
        return "".join(f"{self.allocate(slot)}, " for slot in slots) + "= "

    def begin(self) -> None:
        """Writes the lines before all steps."""

    def end(self) -> None:
        """Writes the lines after all steps."""

    def fail(self) -> None:
        """Writes the first lines of the handler of an error."""

    def arguments(self) -> None:
        passed = [
            slot
            for argument in self.plan.arguments
            if argument.constant is None
            for slot in argument.slots.values()
        ]
        if passed:
            self.line(self.indent, f"{self.write(passed)}arrays")
            self.written = {}

    def launch(self, launch: Launch) -> None:
        kernel = self.target.kernel(launch)
        execute = self.value("launch", kernel.execute)
        operands = self.read(launch.operands)
        places = [self.places[slot] for slot in launch.operands]
        identity = self.identity(launch)
        issued = f"{execute}({operands}{identity})"
        self.before(_span_name(launch))
        if self.needs_token(kernel):
            text = f"issued = {execute}({operands}, True{identity})"
            self.step(text, launch.label, launch.operands, places, launch)
            self.token(launch, kernel)
            issued = "issued"
        if kernel.handlers is not None and launch.results:
            issued = f"{issued}.consume_with_handlers({self.value('results', kernel.handlers)})"
        if launch.results:
            issued = f"{self.write(launch.results)}{issued}"
        self.step(issued, launch.label, launch.operands, places, launch)
        self.after([launch] if kernel.handlers is None else [])

    def needs_token(self, kernel: Kernel) -> bool:
        """Returns whether a launch must return a token, which is ready when the execution is complete."""
        return kernel.keep_token is not None

    def token(self, launch: Launch, kernel: Kernel) -> None:
        """Writes the lines that use the token of a launch."""
        self.step(f"{self.value('keep', kernel.keep_token)}(issued.consume_token())", launch.label, ())

    def identity(self, launch: Launch) -> str:
        """Returns the text of the last argument of `execute`, the id of the launch, with a comma first."""
        return ""

    def before(self, name: str) -> None:
        """Writes the lines before a launch, or before transfers, with that name."""

    def after(self, steps: Sequence[Launch | Transfer | Send | Receive]) -> None:
        """Writes the lines after a launch or transfers; `steps` are those without a token."""

    def transfers(self, transfers: Sequence[Transfer], copy: str) -> None:
        if not transfers:
            return
        self.before(_label(transfers))
        direct = []
        for transfer in transfers:
            routed = self.target.routed(transfer)
            if routed is None:
                direct.append(transfer)
                continue
            text = f"{self.value('routed', routed)}({self.read(transfer.operands)})"
            text = f"{self.write(transfer.results)}{text}"
            self.step(text, _label([transfer]), transfer.operands, step=transfer)
        if direct:
            targets = ", ".join(self.value("to", value) for value in self.target.copies(direct))
            sources = [transfer.operands[0] for transfer in direct]
            text = f"{copy}({self.read(sources)}, {targets})"
            results = self.write([transfer.results[0] for transfer in direct])
            self.step(f"{results}{text}", _label(direct), sources, step=direct[0])
        self.after(transfers)

    def send(self, send: Send) -> None:
        label = f"{_label([send])} (host {send.peer})"
        self.before(label)
        text = f"{self.value('send', self.host.send(send))}({self.read(send.operands)})"
        self.step(text, label, send.operands, step=send)
        self.after([send])

    def receive(self, receive: Receive) -> None:
        label = f"{_label([receive])} (host {receive.peer})"
        self.before(label)
        text = f"{self.value('receive', self.host.receive(receive))}()"
        self.step(f"{self.write(receive.results)}{text}", label, (), step=receive)
        self.after([receive])

    @property
    def host(self) -> HostTarget:
        """The target, of a plan that has sends and receives."""
        return cast(HostTarget, self.target)

    def release(self, release: Release) -> None:
        for slot in release.delete:
            self.line(self.indent, f"{self.places[slot]}.delete()")
        places = [self.places.pop(slot) for slot in release.slots if slot not in self.constants]
        if places:
            self.line(self.indent, f"del {', '.join(places)}")
        for place in places:
            heapq.heappush(self.free, int(place[1:]))

    def results(self) -> None:
        values, slots = [], []
        for number, result in enumerate(self.plan.results):
            for slice, slot in result.slots.items():
                finish = self.target.finish(number, slice)
                place = self.places[slot]
                values.append(place if finish is None else f"{self.value('finish', finish)}({place})")
                slots.append(slot)
        self.step(f"return [{', '.join(values)}]", "results", slots)

    def compile(self) -> GeneratedFunction:
        """Compiles the source; tracebacks show its lines as long as the function lives."""
        filename = f"{SOURCE_NAME}{self.plan.name} {next(_numbers)}>"
        source = "\n".join(self.lines) + "\n"
        namespace = dict(self.values)
        exec(compile(source, filename, "exec"), namespace)
        run = namespace.pop("run")
        # Without a modification time, `linecache.checkcache` keeps an entry without a file.
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        weakref.finalize(run, functools.partial(linecache.cache.pop, filename, None)).atexit = False
        return GeneratedFunction(run, source, self.steps)


class _SpanWriter(_Writer):
    """Writer of a function that issues each step in a context with its name."""

    def __init__(self, plan: Plan, target: StepTarget | HostTarget) -> None:
        super().__init__(plan, target)
        self.span = self.value("span", target.span)

    def before(self, name: str) -> None:
        self.line(self.indent, f"with {self.span}({name!r}):")
        self.indent += 1

    def after(self, steps: Sequence[Launch | Transfer | Send | Receive]) -> None:
        self.indent -= 1


class _ReportWriter(_SpanWriter):
    """Writer of a function that also reports its steps."""

    def __init__(self, plan: Plan, target: StepTarget | HostTarget, observer: StepObserver) -> None:
        super().__init__(plan, target)
        self.observer = observer
        # By id: launches without results may be equal.
        self.numbers = {id(step): n for n, step in enumerate(plan.steps)}
        self.notes = 0

    def begin(self) -> None:
        self.line(self.indent, f"record = {self.value('begin', self.observer.begin)}()")
        self.line(self.indent, "note = record.note")
        self.line(self.indent, "first = record.first_launch_id")

    def end(self) -> None:
        self.line(self.indent, "record.flush()")

    def fail(self) -> None:
        # A traceback keeps the variables of the function alive, and a live record counts as a pending call.
        self.line(2, "record = note = None")

    def identity(self, launch: Launch) -> str:
        return f", first + {self.numbers[id(launch)]}"

    def before(self, name: str) -> None:
        self.line(self.indent, f"at = {self.value('now', self.observer.now)}()")
        super().before(name)

    def needs_token(self, kernel: Kernel) -> bool:
        # An `execute` that returns the results has no token.
        return kernel.handlers is not None

    def token(self, launch: Launch, kernel: Kernel) -> None:
        self.step("token = issued.consume_token()", launch.label, ())
        if kernel.keep_token is not None:
            self.step(f"{self.value('keep', kernel.keep_token)}(token)", launch.label, ())
        self.report(launch, "token, ")

    def after(self, steps: Sequence[Launch | Transfer | Send | Receive]) -> None:
        super().after(steps)
        for step in steps:
            awaitable = [slot for slot in step.results if self.observer.is_awaitable(slot)]
            self.report(step, "".join(f"{self.places[slot]}, " for slot in awaitable))

    def report(self, step: Launch | Transfer | Send | Receive, awaited: str) -> None:
        self.line(self.indent, f"note(({self.numbers[id(step)]}, at, ({awaited})))")
        self.notes += 1
        if self.notes % _NOTES_PER_FLUSH == 0:
            self.end()


_numbers = itertools.count()


def _span_name(launch: Launch) -> str:
    """Returns the slice of a launch, its short name if it has one, and its computation: `s0 F3 front`."""
    name = launch_name(launch.origins, launch.microbatch, launch.label)
    words = [launch.label] if name == launch.label else [name, launch.computation]
    return " ".join([launch.slice, *words])


def _label(transfers: Sequence[Transfer | Send | Receive]) -> str:
    return ", ".join(dict.fromkeys(f"{transfer.src} -> {transfer.dst}" for transfer in transfers))

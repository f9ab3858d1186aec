"""Turns the steps of a plan into one straight-line Python function.

Everything that a step needs was decided before: the function only launches, copies and forgets. Its
locals are registers: a slot takes the lowest one that is free, which keeps them few and the bytecode short.
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
"""With what the names of generated functions begin in tracebacks."""

_NOTES = 256
"""How many notes are passed on at once: it wakes threads, which hold up the one that issues steps."""


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """One launch as the generated function makes it.

    Attributes:
      execute: runs the computation on a list of arrays.
      handlers: one for each result, wraps its buffers; None where `execute` returns the results.
      keep_token: takes the token of an execution with side effects; None for a computation without any.
    """

    execute: Callable[..., Any]
    handlers: Sequence[Any] | None
    keep_token: Callable[[Any], None] | None = None


class StepTarget(Protocol):
    """What the generated function is bound to. Equal requests should return identical objects.

    Attributes:
      constants: the arrays in slots that the caller does not pass.
      order: a context manager that is held while the steps are issued; None for none.
      span: makes the context in which a step with that name is issued, where steps have one.
      is_profiled: whether steps have one now, asked once in each call; None for never.
      explain: is called with what is done in which line, an exception that stopped the function, and the
        arrays it was called with; may raise a better one.
    """

    constants: Mapping[Slot, Any]
    order: Any = None
    span: Callable[[str], Any]
    is_profiled: Callable[[], bool] | None = None
    explain: Callable[[Mapping[int, Line], Exception, Arrays], None] | None = None

    @property
    def copy_arrays(self) -> Callable[..., Any]:
        """Copies a list of arrays to devices, as `pjrt.copy_arrays`."""

    def kernel(self, launch: Launch) -> Kernel:
        """How to make this launch."""

    def copies(self, transfers: Sequence[Transfer]) -> tuple[Any, ...]:
        """Returns the arguments of `copy_arrays` for all these transfers at once, without the arrays."""

    def routed(self, transfer: Transfer) -> Callable[[Arrays], Arrays] | None:
        """How to make a transfer of pieces; None for one that `copy_arrays` makes."""

    def finish(self, result: int, slice: str) -> Callable[[Any], Any] | None:
        """What remains to be done to a result of the program; None for nothing."""


class HostTarget(StepTarget, Protocol):
    """What the generated function of a plan of one host is bound to."""

    def send(self, send: Send) -> Callable[[Arrays], None]:
        """How to give arrays to another host; takes one for each operand, and returns at once."""

    def receive(self, receive: Receive) -> Callable[[], Arrays]:
        """How to ask another host for arrays; returns one for each result at once, which may be pending."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of the function.

    Attributes:
      label: what it does.
      reads: the slots that it reads.
      places: the names of the variables that these are in.
      step: the launch, the send, the receive, or the first of the transfers; None for what comes after all
        steps.
    """

    label: str
    reads: tuple[Slot, ...]
    places: tuple[str, ...] = ()
    step: Launch | Transfer | Send | Receive | None = None


class CallObserver(Protocol):
    """What one call of a function that reports its steps reports to.

    Attributes:
      first_launch_id: the `launch_id` of a launch is this and the number of its step.
    """

    first_launch_id: int

    def note(self, report: tuple[int, int, tuple[Any, ...]]) -> None:
        """Takes the number of a step, when it was dispatched, and tokens or arrays to wait for."""

    def hand_over(self) -> None:
        """Comes after some of the notes, and after the last."""


class StepObserver(Protocol):
    """What a function that reports its steps reports to."""

    def begin(self) -> CallObserver:
        """Begins the record of a call."""

    def now(self) -> int:
        """Returns the time of a clock."""

    def lasting(self, slot: Slot) -> bool:
        """Returns whether an array can be waited for at any time: no later step donates it."""


@dataclasses.dataclass(frozen=True, eq=False)
class Generated:
    """The function, its text, and what is done in its lines, by their numbers."""

    run: Callable[[Arrays], Arrays]
    source: str
    lines: Mapping[int, Line]


def generate(plan: Plan, target: StepTarget | HostTarget, observer: StepObserver | None = None) -> Generated:
    """Generates `run(arrays) -> results`.

    Args:
      plan: the plan.
      target: what the function is bound to.
      observer: what each step is reported to, within its span; None for a function that reports nothing.

    The function takes one array for each slot of each argument that the caller passes, and returns a list
    with one for each slot of each result, both in plan order.
    """
    if observer is not None:
        return _generate(_Reporter(plan, target, observer))
    with_spans = functools.cache(lambda: _generate(_Spanner(plan, target)).run)
    return _generate(_Writer(plan, target), lambda arrays: with_spans()(arrays))


def _generate(writer: _Writer, profiled: Callable[[Arrays], Arrays] | None = None) -> Generated:
    """Generates the function of a writer; `profiled` runs instead of it where steps are to have spans."""
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
    """Launches, sends, receives alone; transfers that follow each other together, with their releases.

    A transfer of what another one brought starts a new group: one call makes all transfers of a group.
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
    """The text of the function, the values that it names, and where each slot is."""

    def __init__(self, plan: Plan, target: StepTarget | HostTarget) -> None:
        self.plan = plan
        self.target = target
        self.indent = 0
        self.lines: list[str] = []
        self.steps: dict[int, Line] = {}
        self.values: dict[str, Any] = {}
        self.names: dict[int, str] = {}
        self.places: dict[Slot, str] = {}
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
        self.steps[len(self.lines)] = Line(label, tuple(reads), tuple(places), step)

    def take(self, slot: Slot) -> str:
        number = heapq.heappop(self.free) if self.free else next(self.registers)
        self.places[slot] = f"v{number}"
        return f"v{number}"

    def read(self, slots: Sequence[Slot]) -> str:
        return f"[{', '.join(self.places[slot] for slot in slots)}]"

    def write(self, slots: Sequence[Slot]) -> str:
        return "".join(f"{self.take(slot)}, " for slot in slots) + "= "

    def begin(self) -> None:
        """Writes what comes before all steps."""

    def end(self) -> None:
        """Writes what comes after all steps."""

    def fail(self) -> None:
        """Writes what comes first after a step that failed."""

    def arguments(self) -> None:
        passed = [
            slot
            for argument in self.plan.arguments
            if argument.constant is None
            for slot in argument.slots.values()
        ]
        if passed:
            self.line(self.indent, f"{self.write(passed)}arrays")

    def launch(self, launch: Launch) -> None:
        kernel = self.target.kernel(launch)
        execute = self.value("launch", kernel.execute)
        operands = self.read(launch.operands)
        places = [self.places[slot] for slot in launch.operands]
        identity = self.identity(launch)
        issued = f"{execute}({operands}{identity})"
        self.before(_span_name(launch))
        if self.wants_token(kernel):
            text = f"issued = {execute}({operands}, True{identity})"
            self.step(text, launch.label, launch.operands, places, launch)
            self.take_token(launch, kernel)
            issued = "issued"
        if kernel.handlers is not None and launch.results:
            issued = f"{issued}.consume_with_handlers({self.value('results', kernel.handlers)})"
        if launch.results:
            issued = f"{self.write(launch.results)}{issued}"
        self.step(issued, launch.label, launch.operands, places, launch)
        self.after([launch] if kernel.handlers is None else [])

    def wants_token(self, kernel: Kernel) -> bool:
        """Returns whether a launch has to tell when it is done."""
        return kernel.keep_token is not None

    def take_token(self, launch: Launch, kernel: Kernel) -> None:
        """Writes what becomes of the token of a launch."""
        self.step(f"{self.value('keep', kernel.keep_token)}(issued.consume_token())", launch.label, ())

    def identity(self, launch: Launch) -> str:
        """What tells `execute` which launch this is, as the last of its arguments."""
        return ""

    def before(self, name: str) -> None:
        """Writes what comes before a launch, or before transfers, with that name."""

    def after(self, steps: Sequence[Launch | Transfer | Send | Receive]) -> None:
        """Writes what comes after a launch or transfers, of which these have no token."""

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
            others = ", ".join(self.value("to", value) for value in self.target.copies(direct))
            sources = [transfer.operands[0] for transfer in direct]
            text = f"{copy}({self.read(sources)}, {others})"
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
        """The target of a plan that has sends and receives."""
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

    def compile(self) -> Generated:
        """Compiles the text; tracebacks show its lines as long as the function lives."""
        filename = f"{SOURCE_NAME}{self.plan.name} {next(_numbers)}>"
        source = "\n".join(self.lines) + "\n"
        namespace = dict(self.values)
        exec(compile(source, filename, "exec"), namespace)
        run = namespace.pop("run")
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        weakref.finalize(run, functools.partial(linecache.cache.pop, filename, None)).atexit = False
        return Generated(run, source, self.steps)


class _Spanner(_Writer):
    """The text of a function that issues each step in a context with its name."""

    def __init__(self, plan: Plan, target: StepTarget | HostTarget) -> None:
        super().__init__(plan, target)
        self.span = self.value("span", target.span)

    def before(self, name: str) -> None:
        self.line(self.indent, f"with {self.span}({name!r}):")
        self.indent += 1

    def after(self, steps: Sequence[Launch | Transfer | Send | Receive]) -> None:
        self.indent -= 1


class _Reporter(_Spanner):
    """The text of a function that also reports its steps."""

    def __init__(self, plan: Plan, target: StepTarget | HostTarget, observer: StepObserver) -> None:
        super().__init__(plan, target)
        self.observer = observer
        # By identity: launches without results may be equal.
        self.numbers = {id(step): n for n, step in enumerate(plan.steps)}
        self.noted = 0

    def begin(self) -> None:
        self.line(self.indent, f"record = {self.value('begin', self.observer.begin)}()")
        self.line(self.indent, "note = record.note")
        self.line(self.indent, "first = record.first_launch_id")

    def end(self) -> None:
        self.line(self.indent, "record.hand_over()")

    def fail(self) -> None:
        # A traceback keeps the variables of the function, and a record that is kept counts as under way.
        self.line(2, "record = note = None")

    def identity(self, launch: Launch) -> str:
        return f", first + {self.numbers[id(launch)]}"

    def before(self, name: str) -> None:
        self.line(self.indent, f"at = {self.value('now', self.observer.now)}()")
        super().before(name)

    def wants_token(self, kernel: Kernel) -> bool:
        # Where `execute` returns the results there is none.
        return kernel.handlers is not None

    def take_token(self, launch: Launch, kernel: Kernel) -> None:
        self.step("token = issued.consume_token()", launch.label, ())
        if kernel.keep_token is not None:
            self.step(f"{self.value('keep', kernel.keep_token)}(token)", launch.label, ())
        self.report(launch, "token, ")

    def after(self, steps: Sequence[Launch | Transfer | Send | Receive]) -> None:
        super().after(steps)
        for step in steps:
            lasting = [slot for slot in step.results if self.observer.lasting(slot)]
            self.report(step, "".join(f"{self.places[slot]}, " for slot in lasting))

    def report(self, step: Launch | Transfer | Send | Receive, waited_for: str) -> None:
        self.line(self.indent, f"note(({self.numbers[id(step)]}, at, ({waited_for})))")
        self.noted += 1
        if self.noted % _NOTES == 0:
            self.end()


_numbers = itertools.count()


def _span_name(launch: Launch) -> str:
    """Returns the slice of a launch, its short name where it has one, and its computation: `s0 F3 front`."""
    name = launch_name(launch.origins, launch.microbatch, launch.label)
    parts = [launch.label] if name == launch.label else [name, launch.computation]
    return " ".join([launch.slice, *parts])


def _label(transfers: Sequence[Transfer | Send | Receive]) -> str:
    return ", ".join(dict.fromkeys(f"{transfer.src} -> {transfer.dst}" for transfer in transfers))

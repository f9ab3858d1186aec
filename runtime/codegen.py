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
from typing import Any, Protocol

from pathways.runtime.plan import Launch, Plan, Release, Slot, Step, Transfer

Arrays = list[Any]


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


class Target(Protocol):
    """What the generated function is bound to. Equal requests should return identical objects."""

    def kernel(self, launch: Launch) -> Kernel:
        """How to make this launch."""

    def copies(self, transfers: Sequence[Transfer]) -> tuple[Any, ...]:
        """The arguments of `copy_arrays`, besides the arrays, that make all these transfers at once."""

    def routed(self, transfer: Transfer) -> Callable[[Arrays], Arrays] | None:
        """How to make a transfer of pieces; None for one that `copy_arrays` makes."""

    def finish(self, result: int, slice: str) -> Callable[[Any], Any] | None:
        """What remains to be done to a result of the program; None for nothing."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of the function: the label of what it does, and the slots that it reads."""

    label: str
    reads: tuple[Slot, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Generated:
    """The function, its text, and what is done in its lines, by their numbers."""

    run: Callable[[Arrays], Arrays]
    source: str
    lines: Mapping[int, Line]


def generate(
    plan: Plan,
    target: Target,
    *,
    copy_arrays: Callable[..., Any],
    constants: Mapping[Slot, Any],
    order: Any = None,
    explain: Callable[[Mapping[int, Line], Exception, Arrays], None] | None = None,
) -> Generated:
    """Generates `run(arrays) -> results`.

    Args:
      plan: the plan.
      target: what its launches, transfers and results are bound to.
      copy_arrays: copies a list of arrays to devices, as `pjrt.copy_arrays`.
      constants: the arrays in slots that the caller does not pass.
      order: a context manager that is held while the steps are issued; None for none.
      explain: is called with what is done in which line, an exception that stopped the function, and the
        arrays it was called with; may raise a better one.

    The function takes one array for each slot of each argument that the caller passes, and returns a list
    with one for each slot of each result, both in plan order.
    """
    writer = _Writer(plan, target, constants)
    copy = writer.value("copy", copy_arrays)
    depth = 1 + (explain is not None) + (order is not None)
    writer.line(0, "def run(arrays):")
    if explain is not None:
        writer.line(1, "try:")
    if order is not None:
        writer.line(depth - 1, f"with {writer.value('order', order)}:")
    writer.indent = depth
    writer.arguments()
    for group in _groups(plan.steps):
        match group[0]:
            case Launch() as launch:
                writer.launch(launch)
            case _:
                writer.transfers([step for step in group if isinstance(step, Transfer)], copy)
                for step in group:
                    if isinstance(step, Release):
                        writer.release(step)
    writer.results()
    if explain is not None:
        writer.line(1, "except Exception as error:")
        writer.line(2, f"{writer.value('explain', functools.partial(explain, writer.steps))}(error, arrays)")
        writer.line(2, "raise")
    return writer.compile()


def _groups(steps: Sequence[Step]) -> list[list[Step]]:
    """Launches alone; the transfers that follow each other together, with the releases behind them.

    A transfer of what another one brought starts a new group: one call makes all transfers of a group.
    """
    groups: list[list[Step]] = []
    arrived: set[Slot] = set()
    for step in steps:
        follows = isinstance(step, Transfer) and not arrived.isdisjoint(step.operands)
        if isinstance(step, Launch) or follows or not groups or not isinstance(groups[-1][0], Transfer):
            groups.append([])
            arrived.clear()
        groups[-1].append(step)
        if isinstance(step, Transfer):
            arrived.update(step.results)
    return groups


class _Writer:
    """The text of the function, the values that it names, and where each slot is."""

    def __init__(self, plan: Plan, target: Target, constants: Mapping[Slot, Any]) -> None:
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
        self.constants = {slot: self.value("constant", array) for slot, array in constants.items()}
        self.places.update(self.constants)

    def value(self, kind: str, value: Any) -> str:
        """The global name of a value, the same for the same object."""
        name = self.names.get(id(value))
        if name is None:
            name = self.names[id(value)] = f"{kind}{len(self.values)}"
            self.values[name] = value
        return name

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def step(self, text: str, label: str, reads: Sequence[Slot]) -> None:
        label = " ".join(label.split())
        self.lines.append(f"{'    ' * self.indent}{text}  # {label}")
        self.steps[len(self.lines)] = Line(label, tuple(reads))

    def take(self, slot: Slot) -> str:
        number = heapq.heappop(self.free) if self.free else next(self.registers)
        self.places[slot] = f"v{number}"
        return f"v{number}"

    def read(self, slots: Sequence[Slot]) -> str:
        return f"[{', '.join(self.places[slot] for slot in slots)}]"

    def write(self, slots: Sequence[Slot]) -> str:
        return "".join(f"{self.take(slot)}, " for slot in slots) + "= "

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
        issued = f"{execute}({operands})"
        if kernel.keep_token is not None:
            self.step(f"issued = {execute}({operands}, True)", launch.label, launch.operands)
            self.step(f"{self.value('keep', kernel.keep_token)}(issued.consume_token())", launch.label, ())
            issued = "issued"
        if kernel.handlers is not None and launch.results:
            issued = f"{issued}.consume_with_handlers({self.value('results', kernel.handlers)})"
        if launch.results:
            issued = f"{self.write(launch.results)}{issued}"
        self.step(issued, launch.label, launch.operands)

    def transfers(self, transfers: Sequence[Transfer], copy: str) -> None:
        direct = []
        for transfer in transfers:
            routed = self.target.routed(transfer)
            if routed is None:
                direct.append(transfer)
                continue
            text = f"{self.value('routed', routed)}({self.read(transfer.operands)})"
            text = f"{self.write(transfer.results)}{text}"
            self.step(text, _label([transfer]), transfer.operands)
        if direct:
            others = ", ".join(self.value("to", value) for value in self.target.copies(direct))
            sources = [transfer.operands[0] for transfer in direct]
            text = f"{copy}({self.read(sources)}, {others})"
            results = self.write([transfer.results[0] for transfer in direct])
            self.step(f"{results}{text}", _label(direct), sources)

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
        filename = f"<pathways program {self.plan.name} {next(_numbers)}>"
        source = "\n".join(self.lines) + "\n"
        namespace = dict(self.values)
        exec(compile(source, filename, "exec"), namespace)
        run = namespace.pop("run")
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        weakref.finalize(run, functools.partial(linecache.cache.pop, filename, None)).atexit = False
        return Generated(run, source, self.steps)


_numbers = itertools.count()


def _label(transfers: Sequence[Transfer]) -> str:
    return ", ".join(dict.fromkeys(f"{transfer.src} -> {transfer.dst}" for transfer in transfers))

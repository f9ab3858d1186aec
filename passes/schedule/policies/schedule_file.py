"""Schedules as files: CSV in the notation of `torch.distributed.pipelining`, one row of actions per slice.

A cell is an action, such as `0F1` for the forward of stage 0 for microbatch 1, or empty where a slice waits.
Only the order in a row counts: an empty cell delays nothing. `(0F1;1B0)OVERLAP_F_B`, two actions that may run
at the same time, are done one after the other.

Where a program has several loops, the rows of each follow a row with the name of the loop alone:

    @first
    0F0,0F1
    @second
    0F0,,0B0
"""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from pathways.passes.schedule.policies.actions import (
    Action,
    ActionCycleError,
    Needs,
    Orders,
    parse_action,
    start_times,
)


class ScheduleFileError(ValueError):
    """Error of a schedule file that is malformed or does not fit the program; the message has the place.

    Attributes:
      loop: the name of the loop whose rows are wrong; None where that is the file as a whole.
    """

    def __init__(self, message: str, loop: str | None = None) -> None:
        super().__init__(message)
        self.loop = loop


@dataclasses.dataclass(frozen=True)
class Work:
    """Work that a schedule orders.

    Attributes:
      rows: the slices that have stages.
      slices: the slice of each stage.
      microbatches: their number.
      needs: every action of the program with the actions whose results it reads.
    """

    rows: Sequence[str]
    slices: Mapping[int, str]
    microbatches: int
    needs: Needs


def write_schedules(loops: Mapping[str, tuple[Orders, Needs]]) -> str:
    """Returns the CSV of the schedules of loops, by name; without the names if there is one loop.

    A column is a unit of time, if every action takes one.

    Raises:
      ActionCycleError: when the orders of a loop cannot be met.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for name, (orders, needs) in loops.items():
        if len(loops) > 1:
            writer.writerow([f"@{name}"])
        times = start_times(orders, needs)
        width = max(times.values(), default=-1) + 1
        for row in orders:
            cells = [""] * width
            for action in row:
                cells[times[action]] = str(action)
            writer.writerow(cells)
    return out.getvalue()


def read_schedules(text: str, works: Mapping[str, Work]) -> dict[str, list[list[Action]]]:
    """Reads the order of the actions of each slice in each loop, and checks that it can be met.

    Args:
      text: the CSV; the nth row of a loop is for slice n of its `rows`.
      works: the work of each loop, by its name; the file must order each action once. B represents I and W if
        a backward is split.

    Raises:
      ScheduleFileError: at the first mistake.
    """
    sections = _sections(text, works)
    orders: dict[str, list[list[Action]]] = {}
    for name, work in works.items():
        try:
            reader = _ScheduleReader(work, list(sections[name]))
            orders[name] = reader.read(sections[name])
            reader.check(orders[name])
        except ScheduleFileError as error:
            place = f"@{name}, " if len(works) > 1 else ""
            raise ScheduleFileError(f"{place}{error}", name) from None
    return orders


def loops_with_halves(path: str, loops: Collection[str]) -> set[str]:
    """Returns the loops for which a schedule file has halves of backwards; none if it cannot be read."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig", errors="replace")
        sections = _sections(text, loops)
    except (OSError, ScheduleFileError):
        # The mistake is reported where the order is read.
        return set()
    return {
        name
        for name, section in sections.items()
        if any(re.search(r"\b[0-9]+[IW][0-9]+\b", cell) for row in section.values() for cell in row)
    }


_Section = dict[int, list[str]]
"""The rows of a loop, without empty ones at the end, by their numbers in the file, from 1."""


def _sections(text: str, loops: Collection[str]) -> dict[str, _Section]:
    """Returns the rows of each loop; a file for one loop may leave out its name."""
    rows: list[list[str]] = []
    try:
        rows += csv.reader(io.StringIO(text, newline=""), strict=True)
    except csv.Error as error:
        raise ScheduleFileError(f"row {len(rows) + 1}: {error}") from None
    named = ", ".join(f"@{name}" for name in loops)
    heads: dict[str, int] = {}
    sections: dict[str, _Section] = {name: {} for name in loops} if len(loops) == 1 else {}
    for number, row in enumerate(rows, 1):
        cells = [cell.strip() for cell in row]
        written = list(filter(None, cells))
        if not written or not written[0].startswith("@"):
            if sections:
                next(reversed(sections.values()))[number] = cells
            elif written:
                raise ScheduleFileError(f"row {number}: expected the name of a loop above it: {named}")
            continue
        name = written[0][1:]
        if len(written) > 1:
            raise ScheduleFileError(f"row {number}: expected nothing after @{_shown(name)}")
        if name not in loops:
            raise ScheduleFileError(f"row {number}: there is no loop @{_shown(name)}; there is {named}")
        if name in heads or any(map(any, sections.get(name, {}).values())):
            above = f"in row {heads[name]} already" if name in heads else "above its rows"
            raise ScheduleFileError(f"row {number}: @{name} is {above}", name)
        heads[name] = number
        sections[name] = {}
    missing = next((name for name in loops if name not in sections), None)
    if missing is not None:
        raise ScheduleFileError(f"@{missing} is missing", missing)
    for section in sections.values():
        while section and not any(next(reversed(section.values()))):
            section.popitem()
    return sections


def _shown(cell: str) -> str:
    """Returns the contents of a cell, for a message; MLIR ends a message at a zero byte."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in cell[:40])


class _ScheduleReader:
    def __init__(self, work: Work, numbers: Sequence[int]) -> None:
        self.work = work
        self.numbers = numbers
        """Of the row of each slice in the file."""
        self.cells: dict[Action, tuple[int, int]] = {}
        """Row and column of each action, from 1."""

    def read(self, rows: _Section) -> list[list[Action]]:
        if len(rows) != len(self.work.rows):
            slices = ", ".join(f"@{name}" for name in self.work.rows)
            raise ScheduleFileError(f"expected {len(self.work.rows)} rows, for {slices}, got {len(rows)}")
        return [
            [
                action
                for column, cell in enumerate(cells, 1)
                if cell
                for action in self.actions(cell, row, column)
            ]
            for row, cells in rows.items()
        ]

    def actions(self, cell: str, row: int, column: int) -> list[Action]:
        """Returns the actions that a cell represents."""

        def fail(message: str) -> NoReturn:
            raise ScheduleFileError(f"row {row}, column {column}, {_shown(cell)}: {message}")

        overlapped = re.fullmatch(r"\(([^();]+);([^();]+)\)OVERLAP_F_B", cell)
        if overlapped:
            return [
                action
                for written_action in overlapped.groups()
                for action in self.actions(written_action, row, column)
            ]
        written = parse_action(cell)
        if written is None:
            if re.fullmatch(r"[0-9]+(SEND_[FB]|RECV_[FB]|UNSHARD|RESHARD|REDUCE_GRAD)[0-9]*", cell):
                fail("is communication, which follows from the order; only F, B, I and W are written")
            fail("is not an action; expected a stage, F, B, I or W, and a microbatch, such as 0F1")
        place = self.work.slices.get(written.stage)
        if place is None:
            stages = ", ".join(map(str, self.work.slices))
            fail(f"there is no stage {written.stage}; the stages are {stages}")
        if place != self.work.rows[self.numbers.index(row)]:
            fail(f"stage {written.stage} is on @{place}, row {self.row_of(place)}")
        if written.microbatch >= self.work.microbatches:
            fail(f"there is no microbatch {written.microbatch}; the last one is {self.work.microbatches - 1}")
        actions = [a for a in parts_of(written) if a in self.work.needs]
        if not actions and not self.is_other_half(written):
            fail(self.why_missing(written))
        # B takes the place of both halves, also of one that the stage does not have.
        for action in parts_of(written):
            if action in self.cells:
                other_row, other_column = self.cells[action]
                fail(f"is in row {other_row}, column {other_column} already")
            self.cells[action] = (row, column)
        return actions

    def is_other_half(self, action: Action) -> bool:
        """Returns whether an action is half of a backward that is all in the other, as on a first stage."""
        other = {"I": "W", "W": "I"}.get(action.kind)
        return other is not None and action._replace(kind=other) in self.work.needs

    def why_missing(self, action: Action) -> str:
        """Explains why a program has no such action, although it has the stage and the microbatch."""
        if action.kind == "F":
            return f"stage {action.stage} has no forward"
        if not any(a.kind != "F" for a in self.work.needs):
            return "the program has no backward"
        if not any(a.kind != "F" and a.stage == action.stage for a in self.work.needs):
            return f"stage {action.stage} has no backward"
        return f"the backward of stage {action.stage} is not split; write B"

    def check(self, orders: Orders) -> None:
        """Checks that nothing is missing, and that the order can be met."""
        missing = sorted(set(self.work.needs) - set(self.cells))
        if missing:
            row = self.row_of(self.work.slices[missing[0].stage])
            some = f"{missing[0]} and {len(missing) - 1} more are" if len(missing) > 1 else f"{missing[0]} is"
            raise ScheduleFileError(f"row {row}: {some} missing")
        # The usual mistake, which is easier to read as two places than as a cycle.
        for actions in orders:
            position = {action: n for n, action in enumerate(actions)}
            for action in actions:
                for need in sorted(self.work.needs[action]):
                    if position.get(need, -1) > position[action]:
                        raise ScheduleFileError(
                            f"{self.at(action)} comes before {self.at(need)}, which it needs"
                        )
        try:
            start_times(orders, self.work.needs)
        except ActionCycleError as error:
            raise ScheduleFileError(error.describe(self.at, self.work.slices)) from None

    def row_of(self, place: str) -> int:
        """Returns the row of a slice in the file."""
        return self.numbers[self.work.rows.index(place)]

    def at(self, action: Action) -> str:
        """Returns an action with its place."""
        row, column = self.cells[action]
        return f"{action} (row {row}, column {column})"


def parts_of(action: Action) -> list[Action]:
    """Returns an action itself, and for B also I and W, which it represents if a backward is split."""
    return [action._replace(kind=kind) for kind in ("BIW" if action.kind == "B" else action.kind)]

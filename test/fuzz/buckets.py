"""Failures by cause: their number, the smallest example, and whether MLIR alone fails on it, too."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import syntax
from cases import INPUT, OUTPUT, PARSER, Case, Verdict, execute, judge, quiet_context
from forked import Ending, Task, run_all
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager
from mutate_lines import without

from pathways.tools import pw_opt
from pathways.tools.common.source import BYTECODE_MAGIC

SECONDS = 10.0
"""Time limit of a case."""

_EFFORT = 25.0
"""Seconds for the reduction of an example."""

_HANGS = 3.0
"""Seconds after which a smaller example of a hang counts as a hang, too."""

_HANG_FACTOR = 4
"""Factor of the effort for hangs, since each attempt takes seconds."""


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Failures of one cause.

    Attributes:
      count: the number of cases.
      number: the number of the smallest case.
      case: the smallest case, reduced at the end.
      verdict: its verdict.
      stock: whether MLIR's own parser, printer or passes fail on it without our code.
    """

    count: int
    number: int
    case: Case
    verdict: Verdict
    stock: bool = False


Buckets = dict[tuple[str, str], Bucket]


def add(buckets: Buckets, number: int, case: Case, verdict: Verdict) -> None:
    """Counts a failure; keeps the smaller example."""
    key = (verdict.kind, verdict.bucket)
    before = buckets.get(key)
    if before is None:
        buckets[key] = Bucket(1, number, case, verdict)
    elif len(case.data) < len(before.case.data):
        buckets[key] = Bucket(before.count + 1, number, case, verdict)
    else:
        buckets[key] = dataclasses.replace(before, count=before.count + 1)


def verdict_of(case: Case, seconds: float = SECONDS) -> Verdict:
    """Runs a case in a child."""
    return _once(functools.partial(write_and_execute, case), judge, seconds)


def write_and_execute(case: Case, folder: Path, note: Callable[[str], None]) -> None:
    """Runs a case in a child."""
    case.write(folder)
    execute(case, folder, note)


def _once[T](task: Task, read: Callable[[Ending], T], seconds: float = SECONDS) -> T:
    # Read at once: the folder of an ending is deleted when the next ending is requested.
    (result,) = [read(ending) for _, ending in run_all([(None, task)], 1, seconds)]
    return result


def finish(buckets: Buckets, jobs: int) -> Iterator[tuple[tuple[str, str], Bucket]]:
    """Reduces the example of each bucket, and checks whether MLIR alone fails on it."""
    tasks = [(key, functools.partial(_finish_one, bucket)) for key, bucket in buckets.items()]
    for key, ending in run_all(tasks, jobs, 2 * _HANG_FACTOR * _EFFORT):
        bucket = buckets[key]
        done = ending.folder / "stock"
        if done.exists():
            stock = json.loads(done.read_text())
            yield key, dataclasses.replace(bucket, case=Case.read(ending.folder), stock=stock)
        else:
            yield key, bucket


def _finish_one(bucket: Bucket, folder: Path, note: Callable[[str], None]) -> None:
    smaller = _Reduction(bucket.case, bucket.verdict).run()
    smaller.write(folder)
    (folder / "stock").write_text(json.dumps(is_stock(smaller, bucket.verdict)))


class _Reduction:
    """Reduction of a case that keeps its verdict."""

    def __init__(self, case: Case, verdict: Verdict) -> None:
        self.case = case
        self.verdict = verdict
        self.deadline = time.monotonic() + _EFFORT * (_HANG_FACTOR if verdict.kind == "hang" else 1)

    def run(self) -> Case:
        whole = self.case
        if not self.keep(whole):
            return whole  # The failure depends on more than the input, so none of it is dropped.
        self.shrink()
        # A case that grows while it runs may hang or run out of memory.
        if self.verdict.kind == "hang" and verdict_of(self.case).kind not in ("hang", "memory"):
            return whole
        return self.case

    def shrink(self) -> None:
        if self.case.flags:
            self.keep(dataclasses.replace(self.case, flags=()))
        self.shorten_pipeline()
        if self.case.data.startswith(b"ML\xefR"):
            if (text := _once(functools.partial(_print, self.case.data), _output)) is None:
                return
            if not self.keep(dataclasses.replace(self.case, data=text)):
                return
        size = len(self.case.data) + 1
        while len(self.case.data) < size and time.monotonic() < self.deadline:
            size = len(self.case.data)
            self.drop_lines(at_least=4)
            self.drop_statements()
            self.drop_lines(at_least=1)
            self.drop_attributes()

    def keep(self, candidate: Case) -> bool:
        """Keeps a candidate if it has the verdict of the case."""
        if time.monotonic() > self.deadline:
            return False
        verdict = verdict_of(candidate, _HANGS if self.verdict.kind == "hang" else SECONDS)
        if (verdict.kind, verdict.bucket) != (self.verdict.kind, self.verdict.bucket):
            return False
        self.case = candidate
        return True

    def keep_text(self, text: str) -> bool:
        return self.keep(dataclasses.replace(self.case, data=text.encode(errors="surrogateescape")))

    @property
    def text(self) -> str:
        return self.case.data.decode(errors="surrogateescape")

    def shorten_pipeline(self) -> None:
        for number in reversed(range(len(self.case.pipeline))):
            rest = self.case.pipeline[:number] + self.case.pipeline[number + 1 :]
            self.keep(dataclasses.replace(self.case, pipeline=rest))
        for number, name in enumerate(self.case.pipeline):
            bare = (*self.case.pipeline[:number], name.partition("{")[0], *self.case.pipeline[number + 1 :])
            if "{" in name:
                self.keep(dataclasses.replace(self.case, pipeline=bare))

    def drop_statements(self) -> None:
        rng = random.Random(0)
        number = 0
        while number < len(found := _largest_first(self.text)):
            if not self.keep_text("\n".join(without(rng, self.text.split("\n"), found[number]))):
                number += 1
            if time.monotonic() > self.deadline:
                return

    def drop_lines(self, at_least: int) -> None:
        chunk = max(1, self.text.count("\n") // 2)
        while chunk >= at_least:
            start = 0
            while start < len(lines := self.text.split("\n")):
                if not self.keep_text("\n".join(lines[:start] + lines[start + chunk :])):
                    start += chunk
            chunk //= 2

    def drop_attributes(self) -> None:
        number = 0
        while number < len(found := syntax.dictionaries(self.text)):
            if not self.keep_attributes(found[number], ()):
                self.drop_some(number)
                number += 1

    def drop_some(self, number: int) -> None:
        """Drops attributes of one dictionary, one after the other."""
        position = 0
        while number < len(found := syntax.dictionaries(self.text)):
            attributes = found[number].attributes
            if position >= len(attributes):
                return
            if not self.keep_attributes(found[number], attributes[:position] + attributes[position + 1 :]):
                position += 1

    def keep_attributes(self, dictionary: syntax.Dictionary, kept: tuple[syntax.Attribute, ...]) -> bool:
        written = ", ".join(self.text[a.start : a.end] for a in kept)
        smaller = syntax.replace(self.text, dictionary.start, dictionary.end, written)
        tidy = re.sub(r"( attributes)? (\{\}|<\{\}>)(?=[ ,)]|$)", "", smaller) if not kept else smaller
        return self.keep_text(tidy) or (tidy != smaller and self.keep_text(smaller))


def _largest_first(text: str) -> list[syntax.Statement]:
    return sorted(syntax.statements(text.split("\n")), key=lambda s: (s.first - s.last, s.first))


def is_stock(case: Case, verdict: Verdict) -> bool:
    """Returns whether MLIR fails by itself: at reading and printing the input, or at a pass of its own.

    The input of that pass is the output of the passes before it, in a separate process. A module that MLIR
    prints and then cannot read is its own fault, too.
    """
    if verdict.kind not in ("crash", "hang", "memory", "reread"):
        return False
    reading = verdict.note == f"reading {INPUT}"
    if PARSER in verdict.bucket or (reading and case.data.startswith(BYTECODE_MAGIC)):
        return True  # A second failure may depend on the contents of memory.
    if _fails_alone(case.data, None, reread=verdict.kind == "reread"):
        return True
    running = re.fullmatch(r"running (.*)", verdict.note)
    names = [name.partition("{")[0] for name in case.pipeline]
    if running is None or running[1].startswith("pw-") or running[1] not in names:
        return False
    before = dataclasses.replace(
        case, pipeline=case.pipeline[: names.index(running[1])], flags=("--mlir-print-op-generic",)
    )
    data = _once(functools.partial(_write_and_run, before), _output)
    return data is not None and _fails_alone(data, running[1])


def _write_and_run(case: Case, folder: Path, note: Callable[[str], None]) -> None:
    case.write(folder)
    pw_opt.main([str(folder / INPUT), "-o", str(folder / OUTPUT), *case.command()[3:]])


def _print(data: bytes, folder: Path, note: Callable[[str], None]) -> None:
    with quiet_context() as context, contextlib.suppress(ir.MLIRError, ValueError, MemoryError):
        module = ir.Module.parse(data, context)
        (folder / OUTPUT).write_bytes(module.operation.get_asm(binary=True, print_generic_op_form=True))


def _output(ending: Ending) -> bytes | None:
    path = ending.folder / OUTPUT
    return path.read_bytes() if path.exists() else None


def _fails_alone(data: bytes, name: str | None, *, reread: bool = False) -> bool:
    """Returns whether MLIR dies or hangs when it reads and prints a module, and runs a pass of its own on it.

    With `reread`, also whether it cannot read its own output.
    """

    def task(folder: Path, note: Callable[[str], None]) -> None:
        printed = None
        with quiet_context() as context:
            try:
                module = ir.Module.parse(data, context)
                module.operation.verify()
                printed = module.operation.get_asm(binary=True)
                ir.Module.parse(printed, context)
                printed = None
                if name is not None:
                    PassManager.parse(f"builtin.module({name})", context).run(module.operation)
            except (ir.MLIRError, ValueError):
                (folder / "unreadable").write_bytes(printed or b"")
            except MemoryError:
                os.abort()

    def failed(ending: Ending) -> bool:
        unreadable = ending.folder / "unreadable"
        cannot_read = reread and unreadable.exists() and unreadable.stat().st_size > 0
        return ending.late or ending.signal is not None or cannot_read

    return _once(task, failed)

"""What `pw-opt` tells besides its output: lists of passes and operations, and timing."""

from __future__ import annotations

import contextlib
import inspect
import textwrap
import time
from collections.abc import Iterator, Sequence

from pathways.dialect import OPERATIONS
from pathways.passes import registry
from pathways.passes.base import options_of
from pathways.passes.builtin_names import BUILTIN_PASSES
from pathways.passes.text import Item, item_text


def first_paragraph(documented: type) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join((inspect.getdoc(documented) or "").split("\n\n")[0].split())


def list_passes() -> str:
    """Every pass with its first sentence, one per line, then the names of MLIR's own."""
    width = max(map(len, registry.names()))
    ours = [f"{name:{width}}  {first_paragraph(registry.load(name))}" for name in registry.names()]
    return "\n".join([*ours, *BUILTIN_PASSES]) + "\n"


def passes_help() -> str:
    """Every pass with its options, for `--help`."""
    lines = ["passes, as flags or in a pipeline:"]
    for name in registry.names():
        pass_type = registry.load(name)
        lines += [f"  --{name}", _indented(first_paragraph(pass_type), 6)]
        for field in options_of(pass_type).values():
            default = str(field.default).lower() if isinstance(field.default, bool) else field.default
            lines.append(f"      {field.name.replace('_', '-')}={default}")
            lines.append(_indented(field.metadata.get("help", ""), 10))
    lines += ["", "passes of MLIR and Shardy:", _indented(" ".join(BUILTIN_PASSES), 2)]
    return "\n".join(lines) + "\n"


def _indented(text: str, spaces: int) -> str:
    indent = " " * spaces
    return textwrap.fill(text, 100, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def dialects_help() -> str:
    """The operations of `pw` with their first sentence, and the names of the other dialects."""
    width = max(map(len, OPERATIONS))
    ours = [f"  {name:{width}}  {first_paragraph(op)}" for name, op in OPERATIONS.items()]
    return "\n".join(["pw", *ours, "also: builtin, func, stablehlo, chlo, sdy, mpmd", ""])


def pipeline_dump(items: Sequence[Item]) -> str:
    """A pipeline as `--dump-pass-pipeline` of `mlir-opt` prints it."""
    passes = ",\n".join(f"  {item_text(item)}" for item in items)
    return f"Pass Manager with {len(items)} passes:\nbuiltin.module(\n{passes}\n)\n"


class Timing:
    """Wall time by activity, reported as MLIR does."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._seconds: list[tuple[str, float]] = []

    @contextlib.contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Adds the time that a block takes."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        """Adds a time in seconds."""
        self._seconds.append((name, seconds))

    def report(self) -> str:
        """The table, in the order in which things ran."""
        total = time.perf_counter() - self._start
        rows = [
            *self._seconds,
            ("Rest", total - sum(seconds for _, seconds in self._seconds)),
            ("Total", total),
        ]
        rule = "===" + "-" * 73 + "==="
        table = [f"  {s:8.4f} ({100 * s / total:5.1f}%)  {name}" for name, s in rows]
        return "\n".join(
            [
                rule,
                "... Execution time report ...".center(79).rstrip(),
                rule,
                f"  Total Execution Time: {total:.4f} seconds",
                "",
                "  ----Wall Time----  ----Name----",
                *table,
                "",
            ]
        )

"""Reports of `pw-opt` on a run: the pipeline, and the time of each pass."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from pathways.passes.manager.text import Item, item_text


def pipeline_dump(items: Sequence[Item]) -> str:
    """Returns a pipeline as `--dump-pass-pipeline` of `mlir-opt` prints it."""
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
        """Returns the table, in the order of the activities."""
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

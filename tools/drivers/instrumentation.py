"""Hooks of `pw-opt` around each pass: they print the IR, measure time, and note the running pass."""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

from jaxlib.mlir import ir

from pathways.dialect.operations.operation import symbol_name
from pathways.passes.manager.text import Item, item_name
from pathways.tools.common import supervisor
from pathways.tools.common.errors import UserError
from pathways.tools.common.files import write_output
from pathways.tools.drivers.reports import Timing

_LONGEST_NAME = 100
"""Limit of a file name in a tree, in characters: a pipeline may be one item."""


class DumpTree:
    """Folder of printed IR: a file for each dump, named as by `mlir-opt`.

    The n-th dump of a module `@m` is `builtin_module_m/<n>_<pass>.mlir`.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._dumps: Counter[str] = Counter()

    def write(self, module: ir.Module, item: Item, text: bytes) -> None:
        """Writes one dump.

        Raises:
          UserError: a folder or the file cannot be created.
        """
        name = f"builtin_module_{_file_name(symbol_name(module.operation.opview) or 'no-symbol-name')}"
        path = self._folder / name / f"{self._dumps[name]}_{_file_name(item_name(item))}.mlir"
        self._dumps[name] += 1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make folder '{path.parent}': {error.strerror}") from None
        write_output(str(path), text)


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "_", text)[:_LONGEST_NAME].strip("_")


@dataclasses.dataclass
class Instrumentation:
    """Hooks of `run_passes` that print the IR and measure time.

    Attributes:
      text: prints a module in the requested syntax.
      options: the flags, which name the passes around which to print.
      tree: the folder; standard error if None.
      timing: the table to which the time of each pass is added.
    """

    text: Callable[[ir.Module], bytes]
    options: argparse.Namespace
    tree: DumpTree | None
    timing: Timing
    _previous: bytes = b""
    _start: float = 0.0

    def before_each(self, item: Item, module: ir.Module) -> None:
        """Prints the IR before a pass, if requested."""
        supervisor.doing(f"running {item_name(item)}")
        if self.options.print_before or _is_among(item, self.options.mlir_print_ir_before):
            self._dump("Before", item, module, self.text(module))
        if self.options.print_change:
            self._previous = self.text(module)
        # Last, so that the time of the pass does not include the printing.
        self._start = time.perf_counter()

    def after_each(self, item: Item, module: ir.Module) -> None:
        """Prints the IR after a pass, if requested."""
        self.timing.add(item_name(item), time.perf_counter() - self._start)
        supervisor.doing(f"verifying the result of {item_name(item)}")
        is_requested = self.options.print_after or _is_among(item, self.options.mlir_print_ir_after)
        if is_requested or (self.options.print_change and self.text(module) != self._previous):
            self._dump("After", item, module, self.text(module))

    def _dump(self, when: str, item: Item, module: ir.Module, text: bytes) -> None:
        header = f"// -----// IR Dump {when} {item_name(item)} //----- //\n"
        if self.tree is not None:
            self.tree.write(module, item, header.encode() + text)
        else:
            print(header + text.decode(errors="replace"), file=sys.stderr)


def _is_among(item: Item, names: Collection[str]) -> bool:
    """Returns whether an item is one of these passes, or a nested pipeline of MLIR's with one in it."""
    if not names:
        return False
    without_options = re.sub(r"\{[^{}]*\}", "", item_name(item))
    return not set(re.findall(r"[\w-]+", without_options)).isdisjoint(names)

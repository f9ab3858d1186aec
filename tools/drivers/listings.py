"""Listings of `pw-opt`: passes, without importing any of them, and operations."""

from __future__ import annotations

import inspect
import textwrap

from pathways.passes.manager import registry


def list_passes() -> str:
    """Returns every pass with its first sentence, one per line, then the names of MLIR's own."""
    width = max(map(len, registry.names()))
    ours = [f"{name:{width}}  {summary.does}" for name, summary in registry.summaries().items()]
    return "\n".join([*ours, *registry.BUILTIN_PASSES]) + "\n"


def passes_help() -> str:
    """Returns every pass with its options, for `--help`."""
    lines = ["passes, as flags or in a pipeline:"]
    for name, summary in registry.summaries().items():
        lines += [f"  --{name}", _indented(summary.does, 6)]
        for option, (default, help) in summary.options.items():
            lines += [f"      {option}={default}", _indented(help, 10)]
    lines += ["", "passes of MLIR and Shardy:", _indented(" ".join(registry.BUILTIN_PASSES), 2)]
    return "\n".join(lines) + "\n"


def _indented(text: str, spaces: int) -> str:
    indent = " " * spaces
    return textwrap.fill(text, 100, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def dialects_help() -> str:
    """Returns the operations of `pw` with their first sentence, and the names of the other dialects."""
    from pathways.dialect import OPERATIONS

    width = max(map(len, OPERATIONS))
    sentences = {name: (inspect.getdoc(op) or "").split("\n\n")[0] for name, op in OPERATIONS.items()}
    ours = [f"  {name:{width}}  {' '.join(sentence.split())}" for name, sentence in sentences.items()]
    return "\n".join(["pw", *ours, "also: builtin, func, stablehlo, chlo, sdy, mpmd", ""])

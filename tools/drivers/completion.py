"""Scripts for completion of the tools' flags in shells: shtab generates them from the parsers."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence

import shtab

from pathways.passes.manager.registry import BUILTIN_PASSES, MODULES
from pathways.passes.pipeline import Options, phases
from pathways.passes.schedule.policies.registry import NAMES
from pathways.tools.common.flags import FlagParser

_PASSES = (*MODULES, *BUILTIN_PASSES)
_FILES = ("FILE", "DIR", "BUNDLE", "TARGET")
"""Metavars of flags and arguments that are files."""

_BASH = """\
# Bash takes `=` in --flag=value as a separate word.
_pw_complete() {
  local n words=()
  for ((n = 0; n <= COMP_CWORD; n++)); do
    if [[ ${COMP_WORDS[n]} != = ]]; then
      words+=("${COMP_WORDS[n]}")
    elif ((n == COMP_CWORD)); then
      words+=("")
    fi
  done
  local COMP_WORDS=("${words[@]}") COMP_CWORD=$((${#words[@]} - 1)) tool=${1##*/}
  "_shtab_${tool//-/_}"
}
"""


def script(shell: str, parsers: Sequence[FlagParser]) -> str:
    """Returns the script for a shell.

    Args:
      shell: `bash`, `zsh` or `fish`.
      parsers: the flags of each tool, for this script alone: it stores completions in them.
    """
    scripts = []
    for parser in parsers:
        if parser.prog == "pw-opt":
            for name in _PASSES:
                parser.add_argument(f"--{name}", action="store_true", help="a pass")
        for described in (parser, *parser.commands.values()):
            for action in described.actions:
                _describe(parser.prog, action, shell)
        scripts.append(shtab.complete(parser, shell))
    match shell:
        case "bash":
            tools = " ".join(parser.prog for parser in parsers)
            scripts += [_BASH, f"complete -o filenames -F _pw_complete {tools}"]
        case "zsh":
            # Sourced code would complete at once; `eval` makes it define functions.
            scripts = [f"eval {shlex.quote(text)}" for text in scripts]
    return "\n".join([*scripts, ""])


def _describe(tool: str, action: argparse.Action, shell: str) -> None:
    """Sets the completion of a flag's or an argument's value."""
    if action.nargs == 0:
        return
    if action.help == argparse.SUPPRESS:
        # That of commands, which the text above the flags describes.
        action.help = "a command"
    action.choices = action.choices or _words(tool, action.dest)
    if action.metavar in _FILES and not action.choices:
        action.complete = shtab.FILE  # type: ignore[attr-defined]
    if shell == "zsh":
        action.option_strings = [
            f"{name}=" if name.startswith("--") else name for name in action.option_strings
        ]


def _words(tool: str, dest: str) -> Sequence[str] | None:
    """Returns the values of a flag that its parser reads as text."""
    words = {
        ("pw-compile", "phase"): ("stablehlo", *(phase.name for phase in phases(Options())), "device"),
        ("pw-compile", "schedule"): NAMES,
        ("pw-sim", "schedules"): NAMES,
        ("pw-viz", "schedules"): NAMES,
        ("pw-opt", "pipeline"): _PASSES,
        ("pw-opt", "mlir_print_ir_before"): _PASSES,
        ("pw-opt", "mlir_print_ir_after"): _PASSES,
        ("pw-viz", "step"): ("last", "all"),
    }
    return words.get((tool, dest))

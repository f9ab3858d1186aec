"""Scripts that let shells complete the flags of the tools, made from the parsers of their flags."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections.abc import Sequence

from pathways.passes.builtin_names import BUILTIN_PASSES
from pathways.passes.pipeline import Options, phases
from pathways.passes.registry import MODULES
from pathways.passes.schedule.policies.registry import NAMES
from pathways.tools.common.flags import FlagParser

_PASSES = (*MODULES, *BUILTIN_PASSES)
_FILES = ("FILE", "DIR", "BUNDLE", "TARGET")
"""What the value of a flag, or an argument, is called where it is a file."""


@dataclasses.dataclass(frozen=True)
class Flag:
    """A flag, or an argument without one.

    Attributes:
      names: with their dashes; none for an argument.
      help: what it does, in a few words.
      value: what its value is called; empty where it has none.
      words: what its value may be, if that is known.
      is_file: whether its value is a file.
    """

    names: tuple[str, ...]
    help: str = ""
    value: str = ""
    words: tuple[str, ...] = ()
    is_file: bool = False


def script(shell: str, parsers: Sequence[FlagParser]) -> str:
    """The script for a shell: `bash`, `zsh` or `fish`.

    Args:
      shell: its name.
      parsers: the flags of each tool.
    """
    write = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]
    parts = [write(parser.prog, flags_of(parser)) for parser in parsers]
    return "\n".join([f"# Completion of the tools for {shell}, written by pw-completion.", *parts])


def flags_of(parser: FlagParser) -> list[Flag]:
    """The flags and arguments of a tool; the passes are flags of `pw-opt`."""
    flags = [_flag(parser.prog, action) for action in parser.actions]
    return [*flags, *(Flag((f"--{name}",)) for name in _PASSES)] if parser.prog == "pw-opt" else flags


def _flag(tool: str, action: argparse.Action) -> Flag:
    value = str(action.metavar or "") if action.nargs != 0 else ""
    words = tuple(map(str, action.choices or _words(tool, action.dest)))
    help_ = " ".join((action.help or "").split()).partition(";")[0]
    return Flag(tuple(action.option_strings), help_, value, words, value in _FILES and not words)


def _words(tool: str, dest: str) -> Sequence[str]:
    """What the value of a flag may be where its parser reads it as text."""
    known = {
        ("pw-compile", "phase"): ("stablehlo", *(phase.name for phase in phases(Options())), "device"),
        ("pw-compile", "policy"): NAMES,
        ("pw-opt", "pipeline"): _PASSES,
        ("pw-opt", "mlir_print_ir_before"): _PASSES,
        ("pw-opt", "mlir_print_ir_after"): _PASSES,
        ("pw-viz", "step"): ("last", "all"),
    }
    return known.get((tool, dest), ())


_BASH = """\
_{function}() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} flag=${{COMP_WORDS[COMP_CWORD-1]}}
  # Bash makes words of their own of `=` in --flag=value.
  [[ $current == = ]] && current=
  [[ $flag == = ]] && flag=${{COMP_WORDS[COMP_CWORD-2]}}
  case $flag in
{cases}
  esac
  case $current in
    -*) mapfile -t COMPREPLY < <(compgen -W {flags} -- "$current") ;;
    *) {rest} ;;
  esac
}}
complete -o filenames -F _{function} {tool}
"""
_BASH_FILES = 'mapfile -t COMPREPLY < <(compgen -f -- "$current")'


def _bash(tool: str, flags: Sequence[Flag]) -> str:
    cases = []
    for flag in flags:
        if flag.names and (flag.value or flag.words):
            cases.append(f"    {'|'.join(flag.names)}) {_bash_values(flag)}; return ;;")
    arguments = [flag for flag in flags if not flag.names]
    words = shlex.quote(" ".join(word for flag in arguments for word in flag.words))
    files = " -f" if any(flag.is_file for flag in arguments) else ""
    names = " ".join(name for flag in flags for name in flag.names)
    return _BASH.format(
        function=tool.replace("-", "_"),
        tool=tool,
        cases="\n".join(cases),
        flags=shlex.quote(names),
        rest=f'mapfile -t COMPREPLY < <(compgen -W {words}{files} -- "$current")',
    )


def _bash_values(flag: Flag) -> str:
    if flag.words:
        return f'mapfile -t COMPREPLY < <(compgen -W {shlex.quote(" ".join(flag.words))} -- "$current")'
    return _BASH_FILES if flag.is_file else "COMPREPLY=()"


def _zsh(tool: str, flags: Sequence[Flag]) -> str:
    function = f"_{tool.replace('-', '_')}"
    specs = [spec for flag in flags for spec in _zsh_specs(flag)]
    lines = " \\\n".join(f"    {shlex.quote(spec)}" for spec in specs)
    return f"{function}() {{\n  _arguments \\\n{lines}\n}}\ncompdef {function} {tool}\n"


def _zsh_specs(flag: Flag) -> list[str]:
    value = ""
    if flag.value or flag.words:
        action = f"({' '.join(flag.words)})" if flag.words else "_files" if flag.is_file else " "
        value = f":{_zsh_text(flag.value or 'value')}:{action}"
    if not flag.names:
        return [f"*{value}"]
    equals = {name: "=" if value and name.startswith("--") else "" for name in flag.names}
    return [f"*{name}{equals[name]}[{_zsh_text(flag.help)}]{value}" for name in flag.names]


def _zsh_text(text: str) -> str:
    return "".join(f"\\{c}" if c in "[]:\\" else c for c in text)


def _fish(tool: str, flags: Sequence[Flag]) -> str:
    lines = []
    for flag in flags:
        words = [f"complete -c {tool}"]
        for name in flag.names:
            words.append(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}")
        if flag.words:
            words.append(f"-x -a {_fish_text(' '.join(flag.words))}")
        elif flag.value and flag.names:
            words.append("-r -F" if flag.is_file else "-x")
        if flag.help and flag.names:
            words.append(f"-d {_fish_text(flag.help)}")
        if len(words) > 1:
            lines.append(" ".join(words))
    return "\n".join(lines) + "\n"


def _fish_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"

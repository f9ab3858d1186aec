"""Mutated files: no tool ends in a traceback, and no file that a tool reads is left out."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pathways.tools.common.flags import CommandParser
from pathways.tools.pw_completion import make_parsers

HERE = Path(__file__).parent
COUNT = 3


def in_a_process(script: str, folder: Path) -> object:
    """Returns `result` of a script; the harness forks, which JAX in the process of the tests forbids."""
    path = folder / "script.py"
    path.write_text(
        f"import json, sys\nsys.path.insert(0, {str(HERE)!r})\n{script}\nprint(json.dumps(result))\n"
    )
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def values_of(tool: str, parser: CommandParser) -> Iterator[str]:
    """Yields the flags and arguments of a tool that have a value, each with the name of the tool."""
    for action in parser.actions:
        if action.nargs == 0 or isinstance(action, argparse._SubParsersAction):
            continue
        longest = max(action.option_strings, key=len, default=str(action.metavar))
        yield f"{tool} {longest}"


@pytest.mark.process
def test_every_flag_with_a_value_is_known_to_the_harness(tmp_path: Path) -> None:
    script = """
from file_kinds import KINDS, OTHER_VALUES
result = [sorted({kind.input for kind in KINDS}), sorted(OTHER_VALUES)]
"""
    inputs, other_values = in_a_process(script, tmp_path)  # type: ignore[misc]
    flags = {
        value
        for parser in make_parsers()
        for described in (parser, *parser.commands.values())
        for value in values_of(parser.prog, described)
    }
    assert flags - {*inputs, *other_values} == set(), (
        "new; say in file_kinds.py whether they are files that are read"
    )
    assert {*inputs, *other_values} - flags == {"pw-lsp TEXT"}


@pytest.mark.process
def test_verdicts_tell_errors_of_users_from_those_of_python(tmp_path: Path) -> None:
    script = """
from mutate_files import verdict_of
result = [
    verdict_of(0, ""),
    verdict_of(1, "pw-sim: error: 'x': not JSON"),
    verdict_of(1, "pw-sim: error: damaged: KeyError: 'ph'"),
    verdict_of(1, "pw-sim: error: Event.__init__() missing 2 required positional arguments"),
    verdict_of(1, "pw-compile: error: step: KeyError: 'w'", quotes_python=True),
    verdict_of(1, "nothing"),
    verdict_of(3, "pw-sim: error: x"),
    verdict_of(None, "Traceback (most recent call last):"),
]
"""
    python = "in Python's words"
    assert in_a_process(script, tmp_path) == [
        *("ok", "refused", python, python, "refused", "silent", "exit code 3", "traceback")
    ]


@pytest.mark.process
def test_mutated_files_are_read_or_refused(tmp_path: Path) -> None:
    command = [sys.executable, HERE / "mutate_files.py", "--count", str(COUNT), "--keep", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    kept = "\n".join(path.read_text() for path in tmp_path.glob("*.txt"))
    assert done.returncode == 0, done.stdout + done.stderr + kept
    assert done.stdout.endswith(" 0 failures\n")

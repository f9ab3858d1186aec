"""The report of `make conformance-real`, with programs that run nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import run
from maxtext_runs import _attempts
from sides import Outcome, RunError

ROOT = Path(__file__).parents[2]


def pinned(file: str) -> dict[str, str]:
    """Versions by package, of a file that has nothing else."""
    lines = (ROOT / file).read_text().splitlines()
    return dict(re.fullmatch(r"(\S+)==(\S+)", line).groups() for line in lines if line[:1] not in ("", "#"))


def test_jax_of_programs_is_that_of_the_server() -> None:
    ours, theirs = pinned("requirements.in"), pinned("test/real/requirements.txt")
    assert [theirs[name] for name in ("jax", "jaxlib")] == [ours[name] for name in ("jax", "jaxlib")]


def test_each_program_is_named_once_and_exists() -> None:
    names = [program.name for program in run.ALL]
    assert len(set(names)) == len(names)
    scripts = {path.stem.replace("_", "-") for path in run.PROGRAMS.glob("*.py")} - {"report"}
    assert scripts == {program.name for program in run.ALL if program.run is run.script}


@pytest.mark.parametrize(
    ("ours", "local", "differs"),
    [
        ({"a": "0x1p0"}, {"a": "0x1p0"}, None),
        ({"a": "1", "b": "3"}, {"a": "1", "b": "2"}, "b is 3 proxied, 2 locally"),
        ({"a": "1"}, {"a": "1", "b": "2"}, "b is None proxied, 2 locally"),
        ({"a": "1", "b": "2"}, {"a": "1"}, "b is 2 proxied, None locally"),
        ({}, {}, "no values"),
    ],
)
def test_the_first_value_that_differs_is_named(ours, local, differs) -> None:
    assert run.difference(ours, local) == differs


def fail(name: str):
    raise RunError("exit code 1")


@pytest.mark.parametrize(
    ("name", "code", "line"),
    [
        ("same", 0, "same equal; 1 values; 3 s proxied, 2 s locally; a step 30 ms, 20 ms (1.50)"),
        ("other", 1, "other DIFFERS: loss is 1 proxied, 2 locally; 1 values; 3 s proxied, 2 s locally"),
        ("failing", 1, "failing FAILED: exit code 1"),
    ],
)
def test_a_line_of_each_program_and_the_exit_code(name, code, line, monkeypatch, capsys) -> None:
    same = Outcome({"loss": "1"}, 3.0, 30.0), Outcome({"loss": "1"}, 2.0, 20.0)
    other = Outcome({"loss": "1"}, 3.0), Outcome({"loss": "2"}, 2.0)
    programs = (
        run.Program("same", compare=lambda _: same),
        run.Program("other", compare=lambda _: other),
        run.Program("failing", compare=fail),
    )
    monkeypatch.setattr(run, "ALL", programs)
    assert run.main([name]) == code
    first, last = capsys.readouterr().out.splitlines()
    assert re.sub(" +", " ", first) == line
    assert last == f"{1 - code} of 1 programs are equal to local JAX"


def test_attempts_of_elastic_training_have_the_steps_that_the_log_has_between_them() -> None:
    completed = [f"completed step: {step}, loss: 1.0" for step in (0, 1, 2, 1)]
    log = ["Elastic attempt 1", "Elastic attempt 2", *completed[:3], "Elastic attempt 3", completed[3]]
    # What was lost with the slice is the report of step 2.
    lines = [{"step": step, "learning/loss": 1.0} for step in (0, 1, 1)]
    attempts = _attempts("\n".join(log), lines, (2, 1, 2))
    assert [(each.slices, each.start, len(each.values)) for each in attempts] == [(1, 0, 2), (2, 1, 1)]

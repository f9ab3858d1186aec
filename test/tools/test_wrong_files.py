"""Files of one kind given to a tool in place of another: one line says what each is, and what takes it."""

import zipfile

import pytest

from pathways.tools import pw_bundle, pw_compile, pw_completion, pw_opt, pw_run, pw_sim, pw_viz

STEP = "import pathways as pw\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "step.py").write_text(STEP)
    (tmp_path / "run.json").write_text("[]")
    (tmp_path / "order.csv").write_text("0F0")
    (tmp_path / "plain.mlir").write_text("module {}")
    (tmp_path / "bytes.mlir").write_bytes(b"\xff\x00\x1b[31m")
    with zipfile.ZipFile(tmp_path / "step.pwb", "w") as file:
        file.writestr("manifest.json", "{}")
    return tmp_path


def error_of(capsys, tool, *arguments):
    """What a tool says of a mistake, in this process."""
    assert tool.main(arguments) == 1
    seen = capsys.readouterr()
    assert seen.out == ""
    return seen.err.removesuffix("\n")


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        (
            pw_opt,
            ["step.py"],
            "pw-opt: error: 'step.py' is Python; "
            "pw-compile step.py:FUNCTION -o FILE.mlir compiles a program in it to MLIR",
        ),
        (
            pw_opt,
            ["step.pwb"],
            "pw-opt: error: 'step.pwb' is a bundle; "
            "pw-bundle inspect --program step.pwb prints the program in it",
        ),
        (
            pw_sim,
            ["run.json"],
            "pw-sim: error: 'run.json' is JSON; traces are for pw-viz --trace, durations for --times",
        ),
        (
            pw_viz,
            ["order.csv", "-o", "x.html"],
            "pw-viz: error: 'order.csv' is CSV; "
            "orders are for pw.program(schedule=...) and pw-schedule{file=...}",
        ),
        (
            pw_sim,
            ["plain.mlir"],
            "pw-sim: error: 'plain.mlir' says no form (pw.form), not 'scheduled'; "
            "compile it with pw-compile, or run pw-schedule, pw-plan-memory and pw-verify-schedule",
        ),
        # What is no text is not written to a terminal.
        (pw_opt, ["bytes.mlir"], "bytes.mlir:1:1: error: input is neither UTF-8 text nor MLIR bytecode"),
        (
            pw_compile,
            ["step.pwb"],
            "pw-compile: error: 'step.pwb' is a bundle, which is already compiled; pw-run step.pwb runs it",
        ),
        # Nothing is imported, and so nothing said of it.
        (pw_compile, ["none.py:step"], "pw-compile: error: cannot import none.py: no such file"),
        (
            pw_compile,
            ["step.py:step", "--args", "run.json"],
            "pw-compile: error: argument 1 is a file; write --args-file run.json",
        ),
        (
            pw_run,
            ["plain.mlir"],
            "pw-run: error: plain.mlir: not a bundle: it does not start like one; "
            "pw-compile -o FILE.pwb and compiled.save(path) write bundles",
        ),
        (
            pw_bundle,
            ["inspct", "step.pwb"],
            "pw-bundle: error: argument inspect|verify: must be one of inspect, verify, got 'inspct'; "
            "did you mean 'inspect'?",
        ),
        (
            pw_completion,
            ["fsh"],
            "pw-completion: error: argument bash|zsh|fish: must be one of bash, zsh, fish, got 'fsh'; "
            "did you mean 'fish'?",
        ),
    ],
)
def test_a_file_of_another_kind(folder, capsys, tool, arguments, message):
    assert error_of(capsys, tool, *arguments) == message

"""Files of one kind given to a tool in place of another: one line says what each is, and what takes it."""

import zipfile

import pytest
from cli import run_tool

STEP = "import pathways as pw\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "step.py").write_text(STEP)
    (tmp_path / "run.json").write_text("[]")
    (tmp_path / "order.csv").write_text("0F0")
    (tmp_path / "plain.mlir").write_text("module {}")
    (tmp_path / "bytes.mlir").write_bytes(b"\xff\x00\x1b[31m")
    with zipfile.ZipFile(tmp_path / "step.pwb", "w") as file:
        file.writestr("manifest.json", "{}")
    return tmp_path


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        (
            "pw-opt",
            ["step.py"],
            "pw-opt: error: 'step.py' is Python; "
            "pw-compile step.py:FUNCTION -o FILE.mlir compiles a program in it to MLIR",
        ),
        (
            "pw-opt",
            ["step.pwb"],
            "pw-opt: error: 'step.pwb' is a bundle; "
            "pw-bundle inspect --program step.pwb prints the program in it",
        ),
        (
            "pw-sim",
            ["run.json"],
            "pw-sim: error: 'run.json' is JSON; traces are for pw-viz --trace, durations for --times",
        ),
        (
            "pw-viz",
            ["order.csv", "-o", "x.html"],
            "pw-viz: error: 'order.csv' is CSV; "
            "orders are for pw.program(schedule=...) and pw-schedule{file=...}",
        ),
        (
            "pw-sim",
            ["plain.mlir"],
            "pw-sim: error: 'plain.mlir' says no form (pw.form), not 'scheduled'; "
            "compile it with pw-compile, or run pw-schedule, pw-plan-memory and pw-verify-schedule",
        ),
        # What is no text is not written to a terminal.
        ("pw-opt", ["bytes.mlir"], "bytes.mlir:1:1: error: input is neither UTF-8 text nor MLIR bytecode"),
        (
            "pw-compile",
            ["step.pwb"],
            "pw-compile: error: 'step.pwb' is a bundle, which is already compiled; pw-run step.pwb runs it",
        ),
        (
            "pw-compile",
            ["."],
            "pw-compile: error: expected path/file.py:function or package.module:function, got '.'",
        ),
        (
            "pw-compile",
            [f"{'x' * 300}.py:f"],
            f"pw-compile: error: cannot import {'x' * 300}.py: no such file",
        ),
        # Nothing is imported, and so nothing said of it.
        ("pw-compile", ["none.py:step"], "pw-compile: error: cannot import none.py: no such file"),
        (
            "pw-compile",
            ["step.py:step", "--args", "run.json"],
            "pw-compile: error: argument 1 is a file; write --args-file run.json",
        ),
        (
            "pw-run",
            ["plain.mlir"],
            "pw-run: error: plain.mlir: not a bundle: it does not start like one; "
            "pw-compile -o FILE.pwb and compiled.save(path) write bundles",
        ),
        (
            "pw-bundle",
            ["inspct", "step.pwb"],
            "pw-bundle: error: argument inspect|verify: must be one of inspect, verify, got 'inspct'; "
            "did you mean 'inspect'?",
        ),
        (
            "pw-completion",
            ["fsh"],
            "pw-completion: error: argument bash|zsh|fish: must be one of bash, zsh, fish, got 'fsh'; "
            "did you mean 'fish'?",
        ),
    ],
)
def test_tools_refuse_files_of_other_kinds(folder, tool, arguments, message):
    done = run_tool(tool, *arguments, cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{message}\n")

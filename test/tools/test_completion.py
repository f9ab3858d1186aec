"""What shells offer for the tools, asked of the shells themselves where they are installed."""

import shutil
import subprocess
import sys

import pytest

from pathways.passes import registry
from pathways.tools.completion import flags_of, script
from pathways.tools.pw_completion import make_parsers

PARSERS = make_parsers()


def run(shell, text, cwd, *arguments):
    done = subprocess.run(
        [shell, *arguments], input=text, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split("\n")[:-1]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a file.mlir").touch()
    (tmp_path / "model.pwb").touch()
    return tmp_path


def offered_by_bash(folder, *words):
    """What bash offers for the last of some words."""
    quoted = " ".join(f"'{word}'" for word in words)
    function = words[0].replace("-", "_")
    asked = (
        f'COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _{function}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    return [line for line in run("bash", f"{script('bash', PARSERS)}\n{asked}\n", folder, "--norc") if line]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["pw-opt", "--mlir-print-ir-tr"], ["--mlir-print-ir-tree-dir"]),
        (["pw-opt", "--pw-plan"], ["--pw-plan-memory"]),
        (["pw-opt", "--mlir-print-ir-after", "=", "pw-plan"], ["pw-plan-memory"]),
        (["pw-opt", "-p", "pw-plan"], ["pw-plan-memory"]),
        (["pw-opt", "a"], ["a file.mlir"]),
        (["pw-opt", "-o", ""], ["a file.mlir", "model.pwb"]),
        (["pw-compile", "--compile-to", "sch"], ["scheduled"]),
        (["pw-compile", "--compile-to", "=", "="], ["scheduled"]),
        (["pw-compile", "--schedule", "zb-h"], ["zb-h1", "zb-h2"]),
        (["pw-compile", "--cpu-devices", ""], []),
        (["pw-compile", "--cpu-d"], ["--cpu-devices"]),
        (["pw-bundle", "ver"], ["verify"]),
        (["pw-bundle", "verify", "mod"], ["model.pwb"]),
        (["pw-run", "m"], ["model.pwb"]),
        (["pw-completion", ""], ["bash", "zsh", "fish"]),
    ],
)
def test_bash(folder, words, offered):
    found = offered_by_bash(folder, *words)
    if words[-1] == "=":
        assert set(offered) < set(found)
    else:
        assert sorted(found) == sorted(offered)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("pw-opt --mlir-print-ir-tr", ["--mlir-print-ir-tree-dir"]),
        ("pw-compile --compile-to=sch", ["--compile-to=scheduled"]),
        ("pw-bundle ver", ["verify"]),
        ("pw-run m", ["model.pwb"]),
    ],
)
def test_fish(folder, line, offered):
    asked = f"{script('fish', PARSERS)}\ncomplete -C '{line}'\n"
    found = [answer.partition("\t")[0] for answer in run("fish", asked, folder, "--no-config")]
    assert set(offered) <= set(found)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_reads_it(folder):
    defined = "\n".join(f"whence -w _{parser.prog.replace('-', '_')}" for parser in PARSERS)
    text = (
        f"autoload -U compinit && compinit -D\n{script('zsh', PARSERS)}\n{defined}\nprint $_comps[pw-opt]\n"
    )
    found = run("zsh", text, folder, "-f")
    assert len(found) == len(PARSERS) + 1
    assert all(line.endswith(": function") for line in found[:-1])
    assert found[-1] == "_pw_opt"


def test_every_flag_is_there():
    for parser in PARSERS:
        names = {name for flag in flags_of(parser) for name in flag.names}
        assert names >= set(parser.flags)
        for shell in ("bash", "zsh", "fish"):
            text = script(shell, PARSERS)
            dashes = "-l " if shell == "fish" else "--"
            assert all(f"{dashes}{name[2:]}" in text for name in names if name.startswith("--"))
    assert {f"--{name}" for name in registry.names()} <= names_of("pw-opt")


def names_of(prog):
    """The flags of a tool."""
    parser = next(parser for parser in PARSERS if parser.prog == prog)
    return {name for flag in flags_of(parser) for name in flag.names}


def test_the_tool_writes_it():
    done = subprocess.run(
        [sys.executable, "-m", "pathways.tools.pw_completion", "bash"], capture_output=True, check=True
    )
    assert done.stdout.decode() == script("bash", PARSERS)

"""Completions that shells offer for the tools, read from the shells themselves where they are installed."""

import subprocess

import pytest
from cli import output_of

from pathways.passes.manager import registry
from pathways.tools.drivers.completion import script
from pathways.tools.pw_completion import SHELLS, make_parsers

SCRIPTS = {shell: script(shell, make_parsers()) for shell in SHELLS}


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
    """Returns the completions of bash for the last of the words."""
    quoted = " ".join(f"'{word}'" for word in words)
    script = (
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _pw_complete '{words[0]}'; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return [line for line in run("bash", f"{SCRIPTS['bash']}\n{script}\n", folder, "--norc") if line]


@pytest.mark.process
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
        (["/bin/pw-bundle", "ver"], ["verify"]),
    ],
)
def test_pw_completion_completes_in_bash(folder, words, offered):
    found = offered_by_bash(folder, *words)
    if words[-1] == "=":
        assert set(offered) < set(found)
    else:
        assert sorted(found) == sorted(offered)


@pytest.mark.process
@pytest.mark.needs("fish")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("pw-opt --mlir-print-ir-tr", ["--mlir-print-ir-tree-dir"]),
        ("pw-compile --compile-to=sch", ["--compile-to=scheduled"]),
        ("pw-bundle ver", ["verify"]),
        ("pw-run m", ["model.pwb"]),
    ],
)
def test_pw_completion_completes_in_fish(folder, line, offered):
    script = f"{SCRIPTS['fish']}\ncomplete -C '{line}'\n"
    found = [answer.partition("\t")[0] for answer in run("fish", script, folder, "--no-config")]
    assert set(offered) <= set(found)


@pytest.mark.process
@pytest.mark.needs("zsh")
def test_pw_completion_is_read_by_zsh(folder):
    (folder / "script").write_text(SCRIPTS["zsh"])
    tools = [parser.prog for parser in make_parsers()]
    script = "\n".join(f"print $_comps[{tool}]; whence -w $_comps[{tool}]" for tool in tools)
    found = run("zsh", f"autoload -U compinit && compinit -D\nsource ./script\n{script}\n", folder, "-f")
    functions = [f"_shtab_{tool.replace('-', '_')}" for tool in tools]
    assert found == [line for name in functions for line in (name, f"{name}: function")]


@pytest.mark.parametrize("shell", SHELLS)
def test_pw_completion_has_every_flag(shell):
    flags = {flag for parser in make_parsers() for flag in parser.flags if flag.startswith("--")}
    flags |= {f"--{name}" for name in registry.names()}
    dashes = "-l " if shell == "fish" else "--"
    assert [flag for flag in flags if f"{dashes}{flag[2:]}" not in SCRIPTS[shell]] == []


def test_pw_completion_writes_the_script():
    assert output_of("pw-completion", "bash") == SCRIPTS["bash"]

"""Every command line of README, CONTRIBUTING and docs/ is one that works.

Those in blocks are run in order, in a folder of the page with `step.py`, the pipeline of README, and what it
leaves. Of what takes minutes, or changes the machine, it is checked that it exists: targets of `make`, extras
for `pip`, benches with `--help`. Commands within prose have flags that their tools know.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pages
import pytest
from cli import output_of

from pathways.passes.manager.registry import MODULES

OF_THE_READER = ("times.json", "failed.mlir")
"""Files that commands read and no other command makes."""
TOOL = re.compile(r"(?<![\w-])\.venv/bin/")


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    binaries = Path(sys.executable).parent
    path = f"{binaries}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "JAX_NUM_CPU_DEVICES": "4"}
    return subprocess.run(
        ["bash", "-euc", TOOL.sub(f"{binaries}/", command)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the repository's own folders, and what the commands for `step.py` leave there."""
    folder = tmp_path_factory.mktemp("commands")
    for name in ("examples", "bench", "test", "docs"):
        (folder / name).symlink_to(pages.ROOT / name)
    (folder / "step.py").write_text(pages.programs("README.md")[1])
    (readme,) = (text for text in pages.commands("README.md") if "step.py" in text and "PW_DUMP_TO" in text)
    done = run(readme, folder)
    assert done.returncode == 0, done.stderr
    assert "bubble     27.3 %" in done.stdout
    assert "measured" in (folder / "step.html").read_text()
    return folder


def simple_commands(text: str) -> list[str]:
    """The lines of a block, without comments."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line for line in (re.sub(r"(^|\s+)#.*$", "", line) for line in lines) if line]


def checked(command: str) -> str | None:
    """The shell's check that a command exists, for one that is not run; None for one that is."""
    words = [word for word in shlex.split(command) if not re.fullmatch(r"[A-Z_]+=.*", word)]
    root = shlex.quote(str(pages.ROOT))
    match words:
        case ["make", *targets]:
            return f"make -n -C {root} {' '.join(shlex.quote(t) for t in targets)} >/dev/null"
        case ["pip", "install", *packages]:
            known = tomllib.loads((pages.ROOT / "pyproject.toml").read_text())["project"]
            ours = " ".join(package for package in packages if "pathways" in package)
            extras = {e for names in re.findall(r"\[([\w,]+)\]", ours) for e in names.split(",")}
            assert extras <= known["optional-dependencies"].keys(), command
            return "true"
        case [python, script, *_] if python.endswith("python") and script.startswith(("bench/", "test/")):
            return f"python {script} --help >/dev/null"
        case [python, "examples/train.py" | "examples/char_lm.py" as script, *_] if python.endswith("python"):
            return f"python {script} --help >/dev/null"  # Tests of their own run these.
        case [setup, *_] if setup.startswith(".ci/"):
            return f"test -x {root}/{setup}"
        case ["mlir-opt-22", *_]:
            return "command -v mlir-opt-22 >/dev/null || exit 0; " + command
    return None


@pytest.mark.process
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, id=f"{page}-{number}")
        for page in pages.pages()
        for number, text in enumerate(pages.commands(page))
    ],
)
def test_commands_work(text: str, folder: Path) -> None:
    if "PW_DUMP_TO=ir" in text:
        return  # The fixture has run it.
    for command in simple_commands(text):
        if any(name in command for name in OF_THE_READER):
            check_flags(command)
            continue
        done = run(checked(command) or command, folder)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def check_flags(command: str) -> None:
    """Fails unless a tool knows the flags that a command gives it."""
    tool, *words = shlex.split(command)
    words = words[: words.index("--")] if "--" in words else words  # What follows is another command.
    flags = {word.partition("=")[0] for word in words if word.startswith("--")}
    if tool.endswith("pw-opt"):
        flags -= {f"--{name}" for name in MODULES}
    assert flags <= set(re.findall(r"--[\w-]+", help_of(tool.removeprefix(".venv/bin/")))), command


@functools.cache
def help_of(tool: str) -> str:
    return output_of(tool, "--help")


@pytest.mark.process
@pytest.mark.parametrize("page", [page for page in pages.pages() if pages.mentioned(page)])
def test_commands_in_prose_exist(page: str, folder: Path) -> None:
    for command in pages.mentioned(page):
        words = [word for word in shlex.split(command) if not re.fullmatch(r"[A-Z_]+=.*", word)]
        tool = words[0].removeprefix(".venv/bin/")
        if tool in pages.TOOLS:
            check_flags(shlex.join(words))
        elif tool == "python":
            assert (folder / words[1]).exists(), command
        else:
            done = run(checked(command) or command, folder)
            assert done.returncode == 0, f"{command}\n{done.stderr}"

"""The programs and commands that README.md and two pages show run, and print what comments say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    return [block for name, block in found if name == language]


def programs(page: str) -> list[str]:
    """The Python blocks of a page. One that starts with `import jax` starts a program, others continue it."""
    found: list[str] = []
    for block in blocks(page, "python"):
        if block.startswith("import jax"):
            found.append(block)
        else:
            found[-1] += block
    return found


def run(*command: str, folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=f"{page}-{number}")
        for page in ("README.md", "docs/pipelining.md", "docs/training.md", "docs/replicas.md")
        for number, program in enumerate(programs(page))
    ],
)
def test_a_program_prints_what_its_comments_say(program: str, tmp_path: Path) -> None:
    promised = re.findall(r"^print\(.*\)  # (.*)$", program, re.MULTILINE)
    output = run(sys.executable, "-c", program, folder=tmp_path)
    assert re.sub(r"Array\((.*?), dtype=\w+\)", r"\1", output).splitlines() == promised != []


def test_the_commands_of_readme_run_on_its_pipeline(tmp_path: Path) -> None:
    _, program = programs("README.md")
    (tmp_path / "step.py").write_text(program)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (commands,) = (block for block in blocks("README.md", "") if "step.py" in block)
    assert "bubble     27.3 %" in run("bash", "-ec", commands, folder=tmp_path)
    assert "measured" in (tmp_path / "step.html").read_text()

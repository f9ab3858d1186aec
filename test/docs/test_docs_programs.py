"""The programs of README and of the pages in docs/ run, and print what their comments say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pages
import preloaded
import pytest

EXTRAS = {
    "grain": "grain",
    "orbax": "orbax.checkpoint",
    "flax": "flax",
    "equinox": "equinox",
    "shardy": "shardy",
}


@pytest.mark.process
@pytest.mark.parametrize(
    ("page", "program"),
    [
        pytest.param(page, program, id=f"{page}-{number}")
        for page in pages.pages()
        for number, program in enumerate(pages.programs(page))
        # test_docs_snippets.py runs the one and looks at its forms; the other is run as a notebook.
        if page not in ("docs/dialect.md", "docs/ten_minutes.md")
    ],
)
def test_programs_print_what_their_comments_say(page: str, program: str, tmp_path: Path) -> None:
    check(program, tmp_path)


@pytest.mark.process
def test_notebook_prints_what_its_comments_say(tmp_path: Path) -> None:
    cells = json.loads((pages.ROOT / "docs" / "ten_minutes.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert [source.rstrip() for source in sources] == [
        block.text.rstrip() for block in pages.blocks("docs/ten_minutes.md", "python")
    ]
    check("\n".join(sources), tmp_path)


def check(program: str, folder: Path) -> None:
    """Runs a program in a folder that has the pipeline of README."""
    for package in re.findall(r"^(?:import|from) (\w+)", program, re.MULTILINE):
        pytest.importorskip(EXTRAS.get(package, "jax"))
    (folder / "step.py").write_text(pages.programs("README.md")[1])
    done = preloaded.run("-c", program, cwd=folder, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = re.sub(r"Array\((.*?), dtype=\w+\)", r"\1", done.stdout).splitlines()
    if "import shardy" in program:
        # It writes a log to standard output.
        printed = [line for line in printed if line in pages.promised(program)]
    assert printed == pages.promised(program)


def test_blocks_have_a_language() -> None:
    languages = {"python", "sh", "text", "mlir", "csv", "console", "json", "mermaid", "diff", "lua", "toml"}
    wrong = [
        (page, block.language, block.text[:40])
        for page in pages.pages()
        for block in pages.blocks(page)
        if block.language not in languages
    ]
    assert not wrong

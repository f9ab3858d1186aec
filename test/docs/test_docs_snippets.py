"""Snippets in README.md and in pages of docs (`PAGES`) are real.

A `mlir` block is a whole module, which must verify, or starts with `// excerpt of <source>`: a form of the
program of the page (`train_step, placed`), a file, or the `output` of the last command. A block whose first
line starts with `$` is a command of pw-opt with its output. A `csv` block is the file `order.csv`. `...`
stands for anything that is left out.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import preloaded
import pytest
from cli import run_tool
from jaxlib.mlir import ir

from pathways.dialect import make_context, verify
from pathways.passes.manager.driver import Diagnostics

ROOT = Path(__file__).parents[2]
PAGES = (
    "docs/dialect.md",
    "docs/extending.md",
    "docs/schedules.md",
    "docs/timelines.md",
    "docs/tools.md",
    "docs/transfers.md",
    "README.md",
)
EXCERPT = "// excerpt of "
BLOCKS = [
    pytest.param(page, number, language, text, id=f"{page}-{number}")
    for page in PAGES
    for number, (language, text) in enumerate(
        re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    )
]


def blocks(kind):
    """The blocks of one kind, as parameters of a test."""
    return [block for block in BLOCKS if kind(block.values[2], block.values[3])]


def is_module(language: str, text: str) -> bool:
    return language == "mlir" and not text.startswith(EXCERPT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the modules of the pages by their names, and the examples."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "examples").symlink_to(ROOT / "examples")
    for block in blocks(is_module):
        text = block.values[3]
        (folder / f"{re.findall(r'module @(\w+)', text)[0]}.mlir").write_text(text)
    for block in blocks(lambda language, _: language == "csv"):
        (folder / "order.csv").write_text(block.values[3])
    return folder


@pytest.fixture(scope="module")
def forms(tmp_path_factory):
    """All forms of the program of docs/dialect.md, by file name."""
    dump = tmp_path_factory.mktemp("forms")
    (program,) = [b.values[3] for b in BLOCKS if b.values[0] == PAGES[0] and b.values[2] == "python"]
    environment = {**os.environ, "PW_DUMP_TO": str(dump)}
    done = preloaded.run("-c", program, env=environment)
    assert done.returncode == 0, done.stderr
    return {file.name.rpartition("_")[2]: file.read_text() for file in dump.iterdir()}


def run(command: str, folder: Path) -> str:
    """Returns the output of a command, errors included."""
    program, *arguments = shlex.split(command)
    name = Path(program).name
    assert name in ("pw-opt", "pw-sim")
    done = run_tool(name, *arguments, cwd=folder)
    return done.stdout + done.stderr


def plain(text: str) -> str:
    """Text without its layout, and without the numbers of values, which depend on JAX's version."""
    return " ".join(re.sub(r"%\w+", "%", text).split())


def check_excerpt(excerpt: str, whole: str) -> None:
    """Fails unless the pieces of an excerpt between its `...` occur in the whole text, in order."""
    rest = plain(whole)
    for piece in filter(None, map(str.strip, plain(excerpt).split("..."))):
        assert piece in rest, f"not there, or not behind what stands before it: {piece}"
        rest = rest.partition(piece)[2]


@pytest.mark.parametrize(("page", "number", "language", "text"), blocks(is_module))
def test_snippets_are_modules_that_verify(page, number, language, text):
    context = make_context()
    with Diagnostics(context) as seen:
        module = ir.Module.parse(text, context)
        assert module.operation.verify()
        assert verify(module), seen.errors


@pytest.mark.parametrize(
    ("page", "number", "language", "text"), blocks(lambda language, text: text.startswith("$ "))
)
def test_snippets_of_sessions_print_what_they_show(page, number, language, text, folder):
    command, _, output = text.partition("\n")
    check_excerpt(output, run(command.removeprefix("$"), folder))


@pytest.mark.process
@pytest.mark.quick
@pytest.mark.parametrize(
    ("page", "number", "language", "text"), blocks(lambda language, text: text.startswith(EXCERPT))
)
def test_snippets_are_excerpts_of_their_sources(page, number, language, text, folder, forms):
    head, _, excerpt = text.partition("\n")
    source = head.removeprefix(EXCERPT)
    if source == "output":
        before = [b.values[3] for b in BLOCKS if b.values[0] == page and b.values[1] < number]
        command = next(b for b in reversed(before) if b.startswith("$ ")).partition("\n")[0]
        whole = run(command.removeprefix("$"), folder)
    elif source.startswith("train_step, "):
        whole = forms[f"{source.removeprefix('train_step, ')}.mlir"]
    else:
        whole = (ROOT / source).read_text()
    check_excerpt(excerpt, whole)

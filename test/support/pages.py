"""Pages of the manual, with their programs and commands.

The language of a block of code determines its use. `python` runs: a block that imports pathways, or the
pipeline of README as `step`, starts a program, and later blocks continue it. `sh` are commands. `text` is
ignored; `mlir`, `csv` and `console` are for test_docs_snippets.py.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TOOLS = (
    "pw-opt",
    "pw-compile",
    "pw-bundle",
    "pw-cluster",
    "pw-proxy",
    "pw-run",
    "pw-sim",
    "pw-viz",
    "pw-lsp",
    "pw-worker",
)
COMMAND = re.compile(rf"(?:\w+=\S+ )*(?:\.venv/bin/)?(?:python|pip|make|{'|'.join(TOOLS)}) ")
ELSEWHERE = "10.0.0.5"
"""Address of a machine that does not exist: blocks that name it are compiled, but not run."""
PROGRAM = re.compile(r"^(?:import pathways|from step import)", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Block:
    language: str
    text: str


def pages() -> list[str]:
    """Returns README, CONTRIBUTING and all of docs/, as paths from the root."""
    manual = sorted(
        str(path.relative_to(ROOT))
        for pattern in ("*.md", "rationale/*.md")
        for path in (ROOT / "docs").glob(pattern)
    )
    return ["README.md", "CONTRIBUTING.md", *manual]


def read(page: str) -> str:
    return (ROOT / page).read_text()


def blocks(page: str, *languages: str) -> list[Block]:
    """Returns the blocks of a page, those in some languages if any are given."""
    every = [Block(*match) for match in BLOCK.findall(read(page))]
    return [block for block in every if not languages or block.language in languages]


def programs(page: str) -> list[str]:
    """Returns the programs of a page."""
    found: list[str] = []
    for block in blocks(page, "python"):
        if ELSEWHERE in block.text:
            compile(block.text, page, "exec")
        elif PROGRAM.search(block.text):
            found.append(block.text)
        else:
            found[-1] += "\n" + block.text
    return found


def promised(program: str) -> list[str]:
    """Returns the lines that a program prints, from comments after `print`."""
    return re.findall(r"^ *print\(.*\)  # (.*)$", program, re.MULTILINE)


def commands(page: str) -> list[str]:
    """Returns the blocks of commands of a page."""
    return [block.text for block in blocks(page, "sh")]


def mentioned(page: str) -> list[str]:
    """Returns the commands within the prose of a page."""
    prose = BLOCK.sub("", read(page))
    return list(dict.fromkeys(w for w in re.findall(r"`([^`\n]+)`", prose) if COMMAND.match(w)))

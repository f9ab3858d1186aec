"""Brings together the pages of the site: the manual, a reference of the API, and pictures by our own tools.

`make site` runs it, then MkDocs. Pages are those of docs/, README, CONTRIBUTING and CHANGELOG, with links as
they are between files of the site. What links to a file that is no page of it becomes the text alone.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pathways

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "site"
PAGES = BUILD / "pages"
PICTURES = ("gpipe", "1f1b", "eager", "zb-h1")
AT_ROOT = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
MANUAL = (Path("docs"), Path("docs/rationale"))
LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
DEFINITION = re.compile(r"^\[(\w+)\]: (docs/)", re.MULTILINE)
"""Definitions of links to pages of the manual."""


def with_links_of_the_site(text: str, folder: Path) -> str:
    """Returns a page with its links to files as they are in the site.

    Args:
      text: the page.
      folder: where it stands in the repository.
    """

    of_site = Path(os.path.relpath(ROOT / "docs", folder)) if folder != ROOT else Path()

    def replaced(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if re.match(r"\w+:", target):
            return match[0]
        path = (folder / target).resolve().relative_to(ROOT)
        if str(path) in AT_ROOT:
            page = str(of_site / AT_ROOT[str(path)])
        elif path.parent in MANUAL and path.suffix in (".md", ".ipynb", ".svg"):
            page = str(of_site / path.relative_to("docs"))
        else:
            return text
        return f"[{title(path) if text == target and path.suffix == '.md' else text}]({page}{anchor})"

    return DEFINITION.sub(r"[\1]: ", LINK.sub(replaced, text))


def title(path: Path) -> str:
    """Returns the heading of a page.

    Args:
      path: from the root of the repository.
    """
    return (ROOT / path).read_text().partition("\n")[0].removeprefix("# ")


def write_pages() -> None:
    """Writes the pages of the manual."""
    for name, page in AT_ROOT.items():
        (PAGES / page).write_text(with_links_of_the_site((ROOT / name).read_text(), ROOT))
    for folder in MANUAL:
        (PAGES / folder.relative_to("docs")).mkdir(exist_ok=True)
        for path in (ROOT / folder).glob("*.md"):
            page = PAGES / folder.relative_to("docs") / path.name
            page.write_text(with_links_of_the_site(path.read_text(), path.parent))
    for name in ("ten_minutes.ipynb", "schedules.svg"):
        shutil.copy(ROOT / "docs" / name, PAGES)


def write_api() -> None:
    """Writes the reference of all public names; MkDocs fills it from their docstrings."""
    text = "# Python\n\n`import pathways as pw`\n"
    shown = {name: getattr(pathways, name) for name in pathways.__all__ if not name.startswith("_")}
    errors = {
        name for name, value in shown.items() if inspect.isclass(value) and issubclass(value, Exception)
    }
    classes = {name for name, value in shown.items() if inspect.isclass(value)} - errors
    functions = set(shown) - classes - errors
    for heading, names in ("Functions", functions), ("Classes", classes), ("Errors and warnings", errors):
        text += f"\n## {heading}\n"
        for name in sorted(names):
            if inspect.ismodule(module := shown[name]):
                members = {f"{name}.{member}": getattr(module, member) for member in module.__all__}
                text += "".join(
                    f"\n::: {member.__module__}.{member.__name__}\n    options:\n      heading: {heading}\n"
                    for heading, member in members.items()
                )
            else:
                text += f"\n::: pathways.{pathways._MODULES[name]}.{name}\n"
    (PAGES / "api.md").write_text(text)


def draw() -> None:
    """Draws the pipeline of README under several schedules, with `pw-compile` and `pw-viz`."""
    programs = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    (program,) = (text for text in programs if "schedule=" in text)
    step = BUILD / "step.py"
    step.write_text(program)
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "4", "JAX_PLATFORMS": "cpu"}
    folder = PAGES / "pictures"
    folder.mkdir()
    text = "# Schedules in pictures\n\nThe pipeline of [README](index.md#pipelining), as `pw-viz` draws it.\n"
    for policy in PICTURES:
        module, picture = BUILD / f"{policy}.mlir", folder / f"{policy}.html"
        tool(environment, "pw_compile", f"{step}:step", "--schedule", policy, "-o", module)
        tool(environment, "pw_viz", module, "-o", picture)
        frame = f'<iframe class="picture" src="pictures/{policy}.html" title="{policy}"></iframe>'
        text += f"\n## {policy}\n\n{frame}\n"
    (PAGES / "pictures.md").write_text(text)


def tool(environment: dict[str, str], name: str, *words: str | Path) -> None:
    subprocess.run([sys.executable, "-m", f"pathways.tools.{name}", *words], env=environment, check=True)


def main() -> None:
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir(parents=True)
    write_pages()
    write_api()
    draw()
    for path in (ROOT / "docs" / "site" / "extra.css", BUILD / "mermaid.min.js"):
        if path.exists():
            shutil.copy(path, PAGES)


if __name__ == "__main__":
    main()

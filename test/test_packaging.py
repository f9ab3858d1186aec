"""Statements about the package, which agree everywhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

import pathways

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_citation_names_this_version_and_license() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == pathways.__version__
    assert citation["license"] == PROJECT["license"]
    (paper,) = citation["references"]
    assert paper["url"] in (ROOT / "README.md").read_text()


def test_project_lists_the_locked_versions_of_python() -> None:
    known = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", c)]
    minors = re.search(r"for minor in ([\d ]+);", (ROOT / ".ci" / "lock").read_text())[1].split()
    assert known == [f"3.{minor}" for minor in minors]
    assert PROJECT["requires-python"] == f">={known[0]}"


def test_requirements_include_every_extra() -> None:
    pinned = {
        re.sub(r"[-_.]+", "-", name).lower()
        for name in re.findall(r"(?m)^(\S+)==", (ROOT / "requirements.in").read_text())
    }
    wanted = {
        re.match(r"[\w.-]+", requirement)[0].lower()
        for extra in PROJECT["optional-dependencies"].values()
        for requirement in extra
    }
    assert wanted <= pinned


def test_commands_quote_extras_that_exist() -> None:
    """In messages and pages: zsh refuses brackets without quotes."""
    folders = ("compiler", "dialect", "passes", "runtime", "tools", "docs")
    files = [
        path for folder in folders for path in (ROOT / folder).rglob("*.*") if path.suffix in (".py", ".md")
    ]
    text = "\n".join(path.read_text() for path in (*files, *ROOT.glob("*.md")))
    packages = [package for package in re.findall(r"pip install\s+(\S+)", text) if "[" in package]
    assert [package for package in packages if not package.startswith("'")] == []
    extras = {extra for names in re.findall(r"pathways-mlir\[([\w,]+)\]", text) for extra in names.split(",")}
    assert {"proxy", "ray"} < extras <= PROJECT["optional-dependencies"].keys()


def test_site_lists_every_page_of_the_manual() -> None:
    listed = re.findall(
        r"^ +- [^:]+: ([\w.]+\.md)$", (ROOT / "docs" / "site" / "mkdocs.yml").read_text(), re.M
    )
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    generated = {"index.md", "contributing.md", "changelog.md", "pictures.md", "api.md"}
    assert set(listed) == pages | generated
    assert len(listed) == len(set(listed))

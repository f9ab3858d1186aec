"""Texts of docs/troubleshooting.md: each is one that the code prints."""

from __future__ import annotations

import functools
import re

import pages
import pytest

ROW = re.compile(r"^\| `([^`]+)`([^|]*)\|", re.MULTILINE)
FOLDERS = ("compiler", "dialect", "passes", "runtime", "tools")


@functools.cache
def sources() -> str:
    """Returns the code, with literals that continue on the next line joined."""
    text = "".join(path.read_text() for folder in FOLDERS for path in (pages.ROOT / folder).rglob("*.py"))
    return re.sub(r'"\n\s+f?"', "", text)


@pytest.mark.parametrize(
    "text", [text for text, of in ROW.findall(pages.read("docs/troubleshooting.md")) if "JAX" not in of]
)
def test_text_is_in_the_code(text: str):
    fragments = [fragment.strip() for fragment in text.split("...")]
    assert all(fragment in sources() for fragment in fragments if len(fragment) > 1)

"""Links between the pages of the manual lead somewhere, and so do the files that they name."""

from __future__ import annotations

import re

import pages
import pytest

LINK = re.compile(r"\]\(([^)\s]+)\)")
FILE = re.compile(
    r"`((?:compiler|dialect|passes|runtime|tools|bench|examples|test|docs)/[\w/]+(?:\.(?:py|md|mlir)|/))`"
)


def anchors(page: str) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    text = pages.BLOCK.sub("", pages.read(page))
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", pages.pages())
def test_links_lead_somewhere(page: str) -> None:
    text = pages.BLOCK.sub("", pages.read(page))
    for link in LINK.findall(text):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (pages.ROOT / page).parent / path if path else pages.ROOT / page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(str(target.resolve().relative_to(pages.ROOT))), link


@pytest.mark.parametrize("page", pages.pages())
def test_links_name_files_that_exist(page: str) -> None:
    missing = [name for name in FILE.findall(pages.read(page)) if not (pages.ROOT / name).exists()]
    assert not missing

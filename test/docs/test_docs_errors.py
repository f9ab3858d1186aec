"""The page of errors has each public error, with what it is derived from."""

from __future__ import annotations

import builtins
import re

import pages

import pathways

ROW = re.compile(r"^\| `(\w+)` \| `(\w+)` \|", re.MULTILINE)


def test_errors_page_lists_the_errors_of_the_package():
    public = {name: getattr(pathways, name) for name in pathways.__all__ if name.endswith("Error")}
    listed = dict(ROW.findall(pages.read("docs/errors.md")))
    assert listed.keys() == public.keys()
    for name, base in listed.items():
        error = public[name]
        assert issubclass(error, pathways.PathwaysError)
        assert issubclass(error, public.get(base) or getattr(builtins, base)), f"{name} is no {base}"
        assert error.__module__ == "pathways", "what a traceback shows is what a user can import"

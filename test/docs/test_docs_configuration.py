"""Variables of docs/configuration.md, against the code that reads them."""

from __future__ import annotations

import re
import sys

import pages

sys.path.insert(0, str(pages.ROOT / "docs"))

import configuration

REMOVED = {"PW_CPU_DEVICES", "PW_ISLANDS"}
"""Variables of earlier releases, which are errors."""


def test_configuration_has_each_variable():
    folders = ("compiler", "dialect", "passes", "runtime", "tools")
    code = "".join(path.read_text() for folder in folders for path in (pages.ROOT / folder).rglob("*.py"))
    read = set(re.findall(r'"(PW_[A-Z_]+)"', code)) - REMOVED
    assert read == {name for name in configuration.VARIABLES if name.startswith("PW_")}

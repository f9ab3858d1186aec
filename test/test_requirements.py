"""Packages that `make` installs, which are pinned by version and by hash."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_requirements_have_hashes():
    pinned = re.findall(r"(?m)^\S+==\S+$", (ROOT / "requirements.in").read_text())
    text = (ROOT / "requirements.txt").read_text()
    locked = re.findall(r"(?m)^(\S+==\S+)(?: \\\n    --hash=sha256:[0-9a-f]{64})+$", text)
    assert len(pinned) > 20
    assert locked == pinned, "run `make lock`"

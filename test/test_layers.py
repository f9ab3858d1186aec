"""The quick layer stays quick, and shows every feature of docs/features.md."""

from __future__ import annotations

import json
import re
from pathlib import Path

import durations
import preloaded
import pytest
from durations import MAX_QUICK_TEST_S

ROOT = Path(__file__).parents[1]

MAX_QUICK_LAYER_S = 12 * 60.0

FEATURES = (
    "programs",
    "meshes",
    "overlap",
    "pipelines",
    "experts",
    "replicas",
    "loops",
    "conditionals",
    "timelines",
    "bundles",
    "front_ends",
    "training",
    "hosts",
    "unmodified",
    "clients",
)
"""The features of docs/features.md, in its order, as `pytest.mark.feature` names them."""


@pytest.mark.process
@pytest.mark.quick
def test_layers_quick_takes_twelve_minutes_of_one_process(quick_tests: list[str] | None) -> None:
    measured = json.loads((ROOT / "test" / "durations.json").read_text())
    seconds = {name: measured.get(name, MAX_QUICK_TEST_S) for name in quick_tests or collect_apart()}
    slow = [name for name, taken in seconds.items() if taken > MAX_QUICK_TEST_S]
    assert not slow, f"over {MAX_QUICK_TEST_S:.0f} s; make them faster, or leave out pytest.mark.feature"
    assert sum(seconds.values()) <= MAX_QUICK_LAYER_S


def collect_apart() -> list[str]:
    """Returns the ids of the tests of the quick layer, as another pytest collects them."""
    options = ("-o", "addopts=", "--collect-only", "-q", "--layer=quick")
    done = preloaded.run("-m", "pytest", *options, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return durations.ids_of(done.stdout)


def test_layers_quick_shows_each_feature() -> None:
    bullets = re.findall(r"^- ", (ROOT / "docs" / "features.md").read_text(), re.MULTILINE)
    assert len(FEATURES) == len(bullets)
    texts = [path.read_text() for path in (ROOT / "test").rglob("test_*.py")]
    marked = {found for text in texts for found in re.findall(r'mark\.feature\("(\w+)", "(\w+)"\)', text)}
    assert marked == {(name, kind) for name in FEATURES for kind in ("values", "error", "hosts")}


def test_durations_keep_tests_that_exist() -> None:
    measured = {"test/b.py::test_b": 0.123, "test/a.py::test_gone": 3.0, "test/a.py::test_a": 1.0}
    tidied = durations.tidy(measured, ["test/a.py::test_a", "test/b.py::test_b", "test/b.py::test_new"])
    assert list(tidied.items()) == [("test/a.py::test_a", 1.0), ("test/b.py::test_b", 0.12)]

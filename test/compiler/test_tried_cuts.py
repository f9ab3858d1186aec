"""Files of cuts that `plan.save` writes: those of earlier releases are read, and written as they were."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pathways.compiler.auto import tried_cuts
from pathways.compiler.auto.tried_cuts import TriedCut, read_cuts, write_cuts

FILE = Path(__file__).parent / "Inputs" / "tried_cuts.json"
CUTS = [
    TriedCut("row", (4,), (10.0, 12.5), (128,), 30.25, "1f1b", 44.5, 0.125, 4096),
    TriedCut("even", (3,), (8.0, 14.5), (256,), 36.0, "zb-h1(max-live=2)", 1e-6, 0.0, 8192, False),
    TriedCut("v", (1, 2, 5), (3.0, 7.0, 6.5, 6.0), (64, 128, 64), 61.0),
]
LOSS: Any = types.SimpleNamespace(name="loss", nodes=[None] * 8)
REQUEST: Any = types.SimpleNamespace(slices=(None, None), num_microbatches=4, subject="pw.auto of 'loss'")


@pytest.fixture(autouse=True)
def _loss_without_operations(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tried_cuts, "fingerprint", lambda flat: "0123456789abcdef")


def test_tried_cuts_are_read_and_written_as_they_were(tmp_path: Path):
    assert read_cuts(FILE, REQUEST, LOSS) == CUTS
    write_cuts(tmp_path / "plan.json", CUTS, REQUEST, LOSS)
    assert (tmp_path / "plan.json").read_bytes() == FILE.read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update({"pathways.auto": 2}), "is not a plan written by plan.save of this release"),
        (lambda d: d.update(fingerprint="0"), "is of another loss, .*: 'loss' of 8 units; this one has 8"),
        (lambda d: d.update(slices=3), "is for 3 slices, got 2"),
        (lambda d: d.pop("cuts"), "cannot be read: .*cuts"),
        (lambda d: d["cuts"][0].pop("bound"), "cannot be read: .*bound"),
        (
            lambda d: d["cuts"][0].update(positions=[4, 5]),
            "cannot be read: its positions do not make 2 stages",
        ),
        (lambda d: d["cuts"][1].update(loads=["x"]), "cannot be read: "),
        (lambda d: d["cuts"][1].update(schedule="zb-h9"), "cannot be read: .*zb-h9"),
    ],
)
def test_tried_cuts_refuse_other_files(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
):
    document = json.loads(FILE.read_text())
    change(document)
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match=rf"^pw.auto of 'loss': plan '.*/plan.json' {message}"):
        read_cuts(tmp_path / "plan.json", REQUEST, LOSS)


def test_tried_cuts_refuse_what_is_not_json(tmp_path: Path):
    (tmp_path / "plan.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="is not JSON"):
        read_cuts(tmp_path / "plan.json", REQUEST, LOSS)

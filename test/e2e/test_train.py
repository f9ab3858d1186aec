"""`examples/train.py` ends with the same losses, whatever is killed on the way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import preloaded
import pytest

pytestmark = pytest.mark.process

pytest.importorskip("grain", reason="grain is not installed")
pytest.importorskip("orbax.checkpoint", reason="orbax-checkpoint is not installed")

EXAMPLE = Path(__file__).parents[2] / "examples" / "train.py"


def command(folder: Path, replicas: int, *more: str) -> list[str]:
    flags = ["--steps", "40", "--every", "4", "--replicas", str(replicas), "--max-to-keep", "2", *more]
    return [sys.executable, str(EXAMPLE), "--out", str(folder), *flags]


def metrics(folder: Path) -> list[dict[str, float]]:
    """Returns the metrics of each step, without durations."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def checkpoints(folder: Path) -> list[int]:
    """Returns the steps of the checkpoints that are complete."""
    if not (folder / "checkpoints").exists():
        return []
    return sorted(int(file.name) for file in (folder / "checkpoints").iterdir() if file.name.isdecimal())


@pytest.mark.parametrize(("replicas", "begun", "ended"), [(1, ["--hosts"], []), (2, [], ["--hosts"])])
def test_train_goes_on_where_it_was_killed(
    tmp_path: Path, replicas: int, begun: list[str], ended: list[str]
) -> None:
    """A run begun on hosts continues in one process, and the reverse; then it loses an island, too."""
    done = preloaded.run(*command(tmp_path / "whole", replicas)[1:], timeout=240)
    assert done.returncode == 0, done.stderr
    whole = metrics(tmp_path / "whole")
    assert [line["step"] for line in whole] == list(range(1, 41))
    assert whole[-1]["held_out"] < whole[3]["held_out"]

    cut = tmp_path / "cut"
    with subprocess.Popen(
        command(cut, replicas, *begun), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        while (
            not (checkpoints(cut) and (cut / "metrics.jsonl").exists())
            or len((cut / "metrics.jsonl").read_text()) < 1000
        ):
            assert process.poll() is None
        process.kill()
    steps = checkpoints(cut)
    assert steps[-1] < 40
    done = preloaded.run(*command(cut, replicas, *ended, "--lose", "30")[1:], timeout=240)
    assert done.returncode == 0, done.stderr
    assert f"from step {steps[-1]};" in done.stdout
    assert metrics(cut) == whole
    kept = checkpoints(cut)
    assert kept[-1] == 40
    assert len(kept) == 2

"""Training with `pw.resilient` whose controller is killed and started again, with the bits of one run."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import killed_controller
import numpy as np
import pytest
from check import assert_equal
from killed_controller import STEPS, resilient, settle, trainer

import pathways as pw
from pathways.compiler.resilience.memory import memory_calls

pytestmark = [pytest.mark.hosts, pytest.mark.process]

pytest.importorskip("orbax.checkpoint.experimental.v1", reason="orbax-checkpoint is not installed")


@dataclasses.dataclass(frozen=True)
class LeftRun:
    """Files of a controller that was killed.

    Attributes:
      disk: its folder on disk.
      memory: the folder of its hosts in memory.
    """

    disk: Path
    memory: Path

    @property
    def hosts(self) -> list[Path]:
        return sorted(self.memory.glob("kept-*/host*"))

    @property
    def metrics(self) -> list[tuple[int, float]]:
        lines = (line.split() for line in (self.disk / "metrics").read_text().splitlines())
        return [(int(n), float.fromhex(value)) for n, value in lines]

    def kill_again(self, *options: str) -> None:
        """Runs a controller that resumes from it, and kills itself."""
        command = [sys.executable, killed_controller.__file__, str(self.disk), str(self.memory), *options]
        process = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        assert process.returncode == -signal.SIGKILL, process.stderr

    def copy(self, folder: Path) -> LeftRun:
        copied = LeftRun(folder / "disk", folder / "memory")
        shutil.copytree(self.disk, copied.disk)
        shutil.copytree(self.memory, copied.memory)
        return copied


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> LeftRun:
    """Run that was killed after version 8 was committed; version 4 is on disk."""
    folder = tmp_path_factory.mktemp("killed")
    left = LeftRun(folder / "disk", folder / "memory")
    left.kill_again("7")
    return left


@pytest.fixture
def left(killed, tmp_path) -> LeftRun:
    return killed.copy(tmp_path)


def connect(left: LeftRun, hosts: int = 2, **options: Any) -> None:
    pw.connect(hosts=hosts, options=pw.HostOptions(snapshot_folder=str(left.memory)), **options)


def undisturbed() -> tuple[list[tuple[int, float]], Any]:
    step, _, state = trainer()
    metrics = []
    for n, batch in enumerate(killed_controller.batches()):
        state, values = step(state, batch)
        metrics.append((n, float(values["loss"])))
    return metrics, jax.device_get(state)


def finish(left: LeftRun, first: int) -> None:
    """Goes on from a step to the end, and compares all metrics and the state with those of one run."""
    expected_metrics, expected = undisturbed()
    with resilient(left.disk) as run:
        assert run.step == first
        metrics = [(n, float(values["loss"])) for n, values in run.steps(STEPS)]
        assert_equal(jax.device_get(run.state), expected)
    assert metrics == expected_metrics[first:]
    assert set(left.metrics) <= set(expected_metrics)
    # It has ended: nothing is left to go on from but the last state, on disk.
    assert [*left.memory.iterdir()] == []
    assert not (left.disk / "memory.json").exists()


def going_on(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = (record.message for record in caplog.records)
    return [line for line in lines if "resuming from" in line or "is not used" in line]


def test_resilient_run_goes_on_from_memory_after_its_controller_is_killed(own_workers, left, caplog):
    caplog.set_level("INFO", "pathways")
    connect(left)
    finish(left, 8)
    assert going_on(caplog) == ["pw.resilient: resuming from version 8 in memory, 0 steps are run again"]


def test_resilient_run_goes_on_after_two_controllers_are_killed(own_workers, left):
    left.kill_again("11")
    assert [n for n, _ in left.metrics] == [*range(12)]
    connect(left)
    finish(left, 12)


def test_resilient_run_goes_on_from_a_committed_version_alone(own_workers, tmp_path, caplog):
    """Version 8 has all its copies when the controller is killed, but metrics before it were not read."""
    caplog.set_level("INFO", "pathways")
    left = LeftRun(tmp_path / "disk", tmp_path / "memory")
    left.kill_again("5", "--uncommitted")
    versions = sorted({path.name.partition(".")[0] for host in left.hosts for path in host.glob("*.*")})
    assert versions == ["4", "8"]
    connect(left)
    finish(left, 4)
    assert going_on(caplog) == ["pw.resilient: resuming from version 4 in memory, 0 steps are run again"]


def test_resilient_run_goes_on_from_the_memory_of_the_other_island(own_workers, left):
    shutil.rmtree(left.hosts[1])
    connect(left)
    finish(left, 8)


def test_resilient_run_records_copies_that_are_made_again(own_workers, tmp_path):
    """The memory of island 1 is lost after the commit; another controller may find its new copies alone."""
    left = LeftRun(tmp_path / "disk", tmp_path / "memory")
    connect(left)
    with resilient(left.disk) as run:
        for n, _ in run.steps(6):
            settle(run, n + 1)
        run.lose("island1", memory=True)
        while not (run.status().losses and run.protected):
            run._recovery.drain()
            run._store.wait(0.05)
        assert run.status().version == 4
        killed_controller.recorded(run, left.memory)


def lose_memory(left: LeftRun) -> None:
    for host in left.hosts:
        shutil.rmtree(host)


def lose_a_block_everywhere(left: LeftRun) -> None:
    """Host 1 loses all, and host 0 its copies of what host 1 had on its device."""
    shutil.rmtree(left.hosts[1])
    for file in left.hosts[0].glob("*/copy*.blocks"):
        if b"'params'][1]" in file.read_bytes():
            file.unlink()


def lose_records(left: LeftRun) -> None:
    for file in left.memory.glob("kept-*/host*/*/committed"):
        file.unlink()


def damage_records(left: LeftRun) -> None:
    for file in left.memory.glob("kept-*/host*/*/committed"):
        file.write_bytes(file.read_bytes()[:100])


@pytest.mark.parametrize(
    ("lose", "why"),
    [
        (lose_memory, None),
        (lose_a_block_everywhere, "version 8 in memory is not used: no host has state['params'][1]"),
        (lose_records, None),
        (damage_records, "version 8 in memory is not used: its record cannot be read: not JSON"),
    ],
)
def test_resilient_run_goes_on_from_disk_if_memory_is_not_whole(own_workers, left, caplog, lose, why):
    caplog.set_level("INFO", "pathways")
    lose(left)
    connect(left)
    finish(left, 4)
    *not_used, last = going_on(caplog)
    assert last == "pw.resilient: resuming from version 4 in disk, 0 steps are run again"
    assert len(not_used) == (why is not None)
    assert all(line.startswith(f"pw.resilient: {why}") for line in not_used)


def test_resilient_run_goes_on_from_disk_on_another_cluster(own_workers, left, caplog):
    caplog.set_level("INFO", "pathways")
    connect(left, hosts=1, devices_per_host=2)
    finish(left, 4)
    assert going_on(caplog) == [
        "pw.resilient: version 8 in memory is not used: this cluster has not the devices of "
        "state['params'][1] on island1",
        "pw.resilient: resuming from version 4 in disk, 0 steps are run again",
    ]


@pytest.mark.parametrize("options", [{"hosts": 3}, {"devices_per_host": 2}])
def test_resilient_run_goes_on_from_memory_on_a_larger_cluster(own_workers, left, options):
    connect(left, **options)
    finish(left, 8)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            lambda state: state | {"rate": np.ones(3, np.float32)},
            r"state\['rate'\] is float32\[\] in the run that goes on, and float32\[3\] in the state of",
        ),
        (
            lambda state: {name: leaf for name, leaf in state.items() if name != "count"},
            r"state\['count'\] is int32\[\] in the run that goes on, and missing in the state of",
        ),
    ],
)
def test_resilient_run_does_not_go_on_with_another_state(own_workers, left, change, what):
    connect(left)
    with (
        pytest.raises(ValueError, match=f"^pw.resilient: {what} this call; "),
        resilient(left.disk, change(trainer()[2])),
    ):
        pass
    # What is in memory stays for the right call.
    finish(left, 8)


def test_resilient_run_has_its_folder_alone(own_workers, left):
    connect(left)
    by = f"process {os.getpid()} on "
    with resilient(left.disk) as run:
        with pytest.raises(RuntimeError, match=f"disk is in use by {by}.*; wait until that has ended"):
            resilient(left.disk).__enter__()
        assert run.step == 8


def test_resilient_run_that_cannot_be_saved_stays_in_memory(own_workers, left, monkeypatch):
    connect(left)
    with (  # noqa: PT012 # the error is of leaving it
        pytest.raises(KeyboardInterrupt) as stopped,
        resilient(left.disk) as run,
    ):
        for n, _ in run.steps(STEPS):
            settle(run, n + 1)
            if n == 11:
                monkeypatch.setattr(run._disk, "save", refuse)
                raise KeyboardInterrupt
    assert stopped.value.__notes__ == [
        "pw.resilient: stopped after step 12; version 12 is in memory: the same call resumes from it "
        "(OSError: no space)"
    ]
    finish(left, 12)


def refuse(*_: Any) -> None:
    raise OSError("no space")


def test_resilient_run_in_memory_stays_until_its_space_is_needed(own_workers, left, tmp_path, monkeypatch):
    connect(left)
    (kept,) = left.memory.iterdir()
    step, program, state = trainer()

    def other() -> Any:
        return pw.resilient(step, state, killed_controller.batches(), feeds=(program, "batch"))

    with other() as run:
        list(run.steps(2))
    assert kept.exists()
    monkeypatch.setattr(memory_calls, "values_of", short_of_space)
    with pytest.raises(OSError, match="snapshots need at least"), other():
        pass
    assert not kept.exists()


values_of = memory_calls.values_of


def short_of_space(*call: Any) -> Any:
    return [own | {"bytes": 0} for own in values_of(*call)]

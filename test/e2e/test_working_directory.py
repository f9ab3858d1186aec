"""Relative paths are below the working directory of the call that takes them, whatever os.chdir does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cli import run_tool

import pathways as pw
from pathways.runtime.resources.paths import absolute_path, path_in_environment
from pathways.runtime.xla import code_store


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Returns a folder to change to, beside the working directory."""
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield tmp_path / "elsewhere"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def add_on(devices: pw.VirtualDeviceSet) -> pw.PlacedFunction:
    return pw.jit(lambda w, x: w + x, devices=devices.add_slice((1,), ("x",)))


def test_resilient_saves_versions_in_the_folder_that_it_was_given(elsewhere: Path):
    add = add_on(pw.make_virtual_device_set())
    step = pw.program(lambda w, x: (lambda y: (y, {"w": y}))(add(w, x)))
    batches = [np.float32(n) for n in range(6)]
    here = Path.cwd()
    with pw.resilient(step, np.float32(0), batches, every=2, directory="run", disk_every=1) as run:
        for n, _ in run.steps(6):
            if n == 1:
                os.chdir(elsewhere)
    os.chdir(here)
    assert pw.checkpoint.latest("run") == 6
    with pw.resilient(step, np.float32(0), batches, every=2, directory="run", disk_every=1) as run:
        assert run.step == 6


def test_checkpoint_is_written_where_the_call_was(elsewhere: Path):
    here = Path.cwd()
    saving = pw.checkpoint.save("run", {"w": np.ones(2)}, 1)
    os.chdir(elsewhere)
    saving.wait()
    assert pw.checkpoint.latest(here / "run") == 1


def test_environment_variables_keep_their_folders(elsewhere: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PW_DUMP_TO", "forms")
    monkeypatch.setenv("PW_CACHE_DIR", "cache")
    here = Path.cwd()
    add = add_on(pw.make_virtual_device_set())
    pw.program(lambda x: add(x, x)).lower(np.float32(1))
    store = code_store.from_environment()
    os.chdir(elsewhere)
    pw.program(lambda x: add(add(x, x), x)).lower(np.float32(1))
    assert (here / "forms").is_dir()
    assert store is not None
    assert (again := code_store.from_environment()) is not None
    assert again.folder == store.folder == here / "cache" / "executables"
    # Child processes get the same folders.
    assert os.environ["PW_DUMP_TO"] == str(here / "forms")


def test_program_reads_the_schedule_file_that_it_was_given(elsewhere: Path):
    Path("order.csv").write_text("0X0\n")
    add = add_on(pw.make_virtual_device_set())
    step = pw.program(lambda x: add(x, x), schedule="order.csv")
    timed = pw.program(lambda x: add(x, x), schedule="search(times=none.json)")
    here = Path.cwd()
    os.chdir(elsewhere)
    with pytest.raises(pw.ProgramError, match="has no loop with stages that a schedule file could order"):
        step.lower(np.float32(1))
    assert timed._schedule == f"search(times={here}/none.json)"


def test_pw_compile_writes_its_output_where_it_was_started(elsewhere: Path):
    Path("step.py").write_text(
        f"import os, pathways as pw\nos.chdir({str(elsewhere)!r})\n"
        "add = pw.jit(lambda x: x + 1, devices=pw.make_virtual_device_set().add_slice((1,), ('x',)))\n"
        "step = pw.program(lambda x: add(x))\n"
    )
    here = Path.cwd()
    done = run_tool("pw-compile", "step.py:step", "--args", "f32[2]", "-o", "step.mlir", cwd=here)
    assert done.returncode == 0, done.stderr
    assert (here / "step.mlir").exists()


def test_paths_of_remote_storage_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert absolute_path("gs://bucket/run") == "gs://bucket/run"
    assert absolute_path("run") == str(tmp_path / "run")
    environment = {"PW_CACHE_DIR": "", "PW_TRACE": "run.json"}
    assert path_in_environment("PW_DUMP_TO", environment) is None
    assert path_in_environment("PW_CACHE_DIR", environment) == ""
    assert path_in_environment("PW_TRACE", environment) == str(tmp_path / "run.json")

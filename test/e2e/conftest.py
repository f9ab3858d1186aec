"""Runs of the examples, each made once however many tests look at it, and workers that tests share."""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pathways as pw

EXAMPLES = Path(__file__).parents[2] / "examples"


@dataclasses.dataclass(frozen=True)
class ExampleRun:
    """What an example printed, and the folder with every form of its programs."""

    output: str
    forms: Path


@pytest.fixture(scope="session")
def run_example(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ExampleRun]:
    """Runs `examples/<name>` with flags."""

    @functools.cache
    def run(name: str, *flags: str) -> ExampleRun:
        forms = tmp_path_factory.mktemp(name.removesuffix(".py"))
        environment = {**os.environ, "PW_DUMP_TO": str(forms)}
        command = [sys.executable, EXAMPLES / name, *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return ExampleRun(done.stdout, forms)

    return run


@pytest.fixture(scope="module")
def shared_workers() -> Iterator[None]:
    """Tests of a module that connect to the same hosts have the same workers, which its last test ends."""
    pw.disconnect()
    yield
    pw.disconnect()


@pytest.fixture
def own_workers() -> Iterator[None]:
    """The test starts workers that no other one gets, so that it may kill them."""
    pw.disconnect()
    yield
    pw.disconnect()


@pytest.fixture
def devices() -> Iterator[pw.VirtualDeviceSet]:
    """Slices of the test, which give their devices back."""
    made = pw.make_virtual_device_set()
    yield made
    for slice in made.slices:
        pw.release(slice)

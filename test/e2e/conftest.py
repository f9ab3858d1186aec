"""Runs of the examples, each made once however many tests look at it."""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

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

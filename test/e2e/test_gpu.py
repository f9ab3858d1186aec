"""Programs on slices that share one GPU: the GPU runs the same programs as CPU devices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.needs("gpu")]

EXAMPLES = Path(__file__).parents[2] / "examples"

PROGRAMS = Path(__file__).with_name("gpu_programs.py")


def run_on_gpu(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs Python with GPUs as JAX's only platform."""
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
        env={**os.environ, "JAX_PLATFORMS": "cuda", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    )


def test_gpu_runs_figure2():
    done = run_on_gpu(EXAMPLES / "figure2.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "f([1. 2.]) = ([3. 5.], [2. 4.])\n4 launches, 3 transfers between slices\n"


def test_gpu_trains_the_language_model(tmp_path):
    done = run_on_gpu(EXAMPLES / "char_lm.py", "--quick", "--dump-dir", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "losses of the first 12 steps agree" in done.stdout


@pytest.mark.parametrize("name", ["training", "branches", "loops", "hosts"])
def test_gpu_equals_jit(name):
    done = run_on_gpu(PROGRAMS, name)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "agrees\n"


@pytest.mark.parametrize("name", ["checkpoints", "bundles", "service"])
def test_gpu_equals_jit_with_files(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PW_CLUSTERS", str(tmp_path / "clusters"))
    done = run_on_gpu(PROGRAMS, name, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("agrees\n")

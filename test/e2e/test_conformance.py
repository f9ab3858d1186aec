"""`make conformance` on a test file of its own: differing, exiting and hanging each give one outcome."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

CONFORMANCE = Path(__file__).parents[1] / "conformance.py"

TESTS = """
import os, time
import jax
from jax._src import test_util as jtu

jax.config.parse_flags_with_absl()
jtu.request_cpu_devices(8)
PROXIED = jax.config.jax_platforms == "proxy"

class SomeTest(jtu.JaxTestCase):
    def test_a_passes(self):
        self.assertEqual(jax.jit(lambda x: x + 1)(1), 2)
        self.assertEqual(jax.device_count(), 8)
    def test_b_is_skipped(self):
        self.skipTest("by itself")
    def test_c_differs(self):
        self.assertFalse(PROXIED, "number 17")
    def test_d_ends_the_process(self):
        if PROXIED:
            os._exit(3)
    def test_e_hangs(self):
        time.sleep(600 if PROXIED else 0)
    def test_f_fails_on_both(self):
        raise ValueError("always")
    def test_g_passes_after_all(self):
        self.assertEqual(float(jax.numpy.ones(2)[0]), 1)
"""


def run(source: Path, state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the comparison on the file of `source`."""
    command = [sys.executable, str(CONFORMANCE), str(source), "--files", "some", "--state", str(state)]
    return subprocess.run(
        [*command, "--timeout", "60", *arguments], capture_output=True, text=True, timeout=280, env=os.environ
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Returns a checkout that has one test file."""
    (tmp_path / "jax" / "tests").mkdir(parents=True)
    (tmp_path / "jax" / "tests" / "some_test.py").write_text(TESTS)
    return tmp_path / "jax"


def test_differences_are_printed_by_reason(source: Path, tmp_path: Path) -> None:
    done = run(source, tmp_path / "state", "-k", "test_[abcfg]_")
    assert "some_test: 3 of 4 pass locally, 2 of 4 through the server" in done.stdout, done.stderr
    assert "1 NOT KNOWN: failed: AssertionError: True is not false : number N\n" in done.stdout
    assert "      SomeTest.test_c_differs\n" in done.stdout
    assert done.returncode == 1
    # A later run knows the outcomes of an earlier one.
    done = run(source, tmp_path / "state", "-k", "test_[abfg]_")
    assert done.stdout.startswith("once: 0 chunks of tests\nagain: 0 chunks of tests\n")


def test_an_exit_or_a_hang_is_one_outcome(source: Path, tmp_path: Path) -> None:
    done = run(source, tmp_path / "state", "-k", "test_[de]_", "--timeout", "5")
    assert "some_test: 2 of 2 pass locally, 0 of 2 through the server" in done.stdout, done.stderr
    assert "ended: the process ended with code N\n      SomeTest.test_d_ends" in done.stdout
    assert "ended: no end within N s\n      SomeTest.test_e_hangs" in done.stdout


def test_a_folder_that_is_no_checkout(tmp_path: Path) -> None:
    done = run(tmp_path, tmp_path)
    assert f"{tmp_path} is no checkout of JAX: it has no tests/some_test.py" in done.stderr
    assert done.returncode == 2

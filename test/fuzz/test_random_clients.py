"""Sample of the random JAX programs that `make fuzz` runs behind the proxy server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COUNT = 8


@pytest.mark.process
def test_random_programs_behind_the_server_equal_local_jax(tmp_path: Path) -> None:
    """In a process of its own, with more devices and other flags of XLA than tests have."""
    script = Path(__file__).with_name("random_clients.py")
    command = [sys.executable, script, "--count", str(COUNT), "--keep", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    kept = "\n".join(path.read_text() for path in tmp_path.glob("*.txt"))
    assert done.returncode == 0, done.stdout + done.stderr[-3000:] + kept
    assert done.stdout.endswith(f"{COUNT} programs, 0 failures\n")

"""Mutated bundles: none causes a traceback, a crash or a hang of the loader."""

import subprocess
import sys
from pathlib import Path

COUNT = 60


def test_mutate_bundles_finds_no_failure(tmp_path):
    """The harness runs in its own process, since it forks: JAX in the process of the tests forbids that."""
    script = Path(__file__).with_name("mutate_bundles.py")
    command = [sys.executable, script, "--seed", "0", "--count", str(COUNT), "--keep", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    kept = "\n".join(path.read_text() for path in tmp_path.glob("*.txt"))
    assert done.returncode == 0, done.stdout + done.stderr + kept
    counts = {tuple(line.split()[1:]): int(line.split()[0]) for line in done.stdout.splitlines()[:-1]}
    # Some still run, or else the mutations would be too rough.
    assert counts["ran",] > COUNT / 20
    assert done.stdout.endswith(f"{COUNT} cases, 0 failures\n")

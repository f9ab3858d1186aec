"""Mutated bundles: none ends in a traceback, kills the loader or hangs it."""

import subprocess
import sys
from pathlib import Path

import pytest

COUNT = 60


@pytest.mark.process
def test_bundle_mutations_load_or_are_refused(tmp_path):
    """In a process of its own: the harness forks, which JAX in the process of the tests forbids."""
    script = Path(__file__).with_name("mutate_bundles.py")
    command = [sys.executable, script, "--seed", "0", "--count", str(COUNT), "--keep", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    kept = "\n".join(path.read_text() for path in tmp_path.glob("*.txt"))
    assert done.returncode == 0, done.stdout + done.stderr + kept
    counts = {tuple(line.split()[1:]): int(line.split()[0]) for line in done.stdout.splitlines()[:-1]}
    # Some bundles still run: otherwise the mutations would test the reader only.
    assert counts["ran",] > COUNT / 20
    assert done.stdout.endswith(f"{COUNT} cases, 0 failures\n")

"""Mutated requests and frames of JAX clients: each gets a status, and none kills the server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COUNT = 20
PROGRAMS = ("shardings_of_device_put", "what_is_donated_is_deleted", "strings", "memories_of_the_host")


@pytest.mark.process
def test_mutated_requests_get_a_status(tmp_path: Path) -> None:
    """In a process of its own: the harness forks, which JAX in the process of the tests forbids."""
    script = Path(__file__).with_name("mutate_requests.py")
    command = [sys.executable, script, "--count", str(COUNT), "--keep", tmp_path, "--programs", *PROGRAMS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"{COUNT} sessions, ")
    assert last.endswith(" 0 failures")


@pytest.mark.process
def test_mutated_connections_end(tmp_path: Path) -> None:
    script = Path(__file__).with_name("mutate_connections.py")
    command = [sys.executable, script, "--count", "60", "--keep", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "60 connections, 0 failures\n"

"""A cluster of real workers from `pw-cluster up` to its end, with a client."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import pathways as pw
from pathways.runtime.service.protocol.folders import ClusterFolder
from pathways.tools import pw_cluster

pytestmark = pytest.mark.process


@pytest.fixture
def lab(tmp_path, monkeypatch) -> Iterator[ClusterFolder]:
    monkeypatch.setenv("PW_CLUSTERS", str(tmp_path))
    (tmp_path / "lab.toml").write_text("[[islands]]\ncount = 2\n[clients.ann]\nweight = 2.0\n")
    # Slices of earlier tests may hold devices still.
    pw.disconnect()
    yield ClusterFolder("lab")
    pw.disconnect()
    if ClusterFolder("lab").is_held():
        assert pw_cluster.main(["down", "lab"]) == 0


def runs(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def attached():
    """Runs a program on both islands of the cluster."""
    pw.connect(attach="lab", client="ann")
    devices = pw.make_virtual_device_set()
    double = pw.jit(lambda x: x * 2, devices=devices.add_slice((1,), axis_names=("x",)))
    add = pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), axis_names=("x",)))
    return pw.program(lambda x: add(double(x)))


def test_shared_cluster_comes_back_after_a_kill(lab, capfd):
    """A client attaches each time; no process of the cluster is left."""
    for end in (signal.SIGKILL, signal.SIGTERM):
        assert pw_cluster.main(["up", str(lab.path.parent / "lab.toml")]) == 0
        step = attached()
        np.testing.assert_array_equal(step(jnp.arange(4.0)), 2 * np.arange(4.0) + 1)
        capfd.readouterr()
        assert pw_cluster.main(["status", "lab", "--json"]) == 0
        status = json.loads(capfd.readouterr().out)
        (ann,) = status["clients"]
        assert (ann["name"], ann["weight"], ann["steps_done"]) == ("ann", 2.0, 1)
        processes = [status["pid"], *(host["pid"] for i in status["islands"] for host in i["hosts"])]
        assert len(processes) == 3
        os.kill(status["pid"], end)
        deadline = time.monotonic() + 30
        while any(map(runs, processes)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(pw.HostError, match="service lab"):
            np.asarray(step(jnp.arange(4.0)))
        pw.disconnect()


def test_service_imports_no_jax():
    code = "import sys, pathways.runtime.clusters.service_process; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

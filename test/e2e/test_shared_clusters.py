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
from pathways.runtime.service.client.attaching import Attachment, attach, attachment_of
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


def attached(**settings):
    """Returns a program on both islands of the cluster."""
    pw.connect("lab", **settings)
    devices = pw.make_virtual_device_set()
    double = pw.jit(lambda x: x * 2, devices=devices.add_slice((1,), axis_names=("x",)))
    add = pw.jit(lambda x: x + 1, devices=devices.add_slice((1,), axis_names=("x",)))
    return pw.program(lambda x: add(double(x)))


def test_shared_cluster_comes_back_after_a_kill(lab, capfd):
    """A client attaches each time; no process of the cluster is left."""
    for end in (signal.SIGKILL, signal.SIGTERM):
        assert pw_cluster.main(["up", str(lab.path.parent / "lab.toml")]) == 0
        step = attached(client="ann")
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


def test_tokens_of_clients_outlive_the_service(lab, tmp_path, capfd):
    """Clients that do not know each other share a cluster, and one of them is locked out for good."""
    up = ["up", str(tmp_path / "lab.toml")]
    assert pw_cluster.main(up) == 0
    old, new, other = (tmp_path / f"{name}.token" for name in ("old", "new", "bo"))
    for name, file in (("ann", old), ("bo", other)):
        assert pw_cluster.main(["token", "lab", name, "-o", str(file)]) == 0
    step = attached(token=old)
    np.testing.assert_array_equal(step(jnp.arange(4.0)), 2 * np.arange(4.0) + 1)
    bo = attach(attachment_of("lab", None, other))
    capfd.readouterr()
    for arguments in (["end", "lab", "bo"], ["down", "lab"], ["token", "lab", "ann"]):
        assert pw_cluster.main([*arguments, "--token", str(old)]) == 1
        error = capfd.readouterr().err
        assert error.endswith("needs the token of the cluster, and this one is of client 'ann'\n")
    with pytest.raises(ValueError, match="is a token of client 'ann', not of 'cy'"):
        attachment_of("lab", "cy", old)
    with pytest.raises(pw.HostError, match="rejects this token"):
        attach(Attachment("lab", "cy", str(old)))

    assert pw_cluster.main(["token", "lab", "ann", "--revoke", "-o", str(new)]) == 0
    with pytest.raises(pw.HostError, match="has ended this client: its token was revoked"):
        np.asarray(step(jnp.arange(4.0)))
    pw.disconnect()
    capfd.readouterr()
    assert pw_cluster.main(["status", "lab", "--json"]) == 0
    status = json.loads(capfd.readouterr().out)
    assert [client["name"] for client in status["clients"]] == ["bo"]
    bo.close()

    os.kill(status["pid"], signal.SIGKILL)
    deadline = time.monotonic() + 30
    while lab.is_held():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert pw_cluster.main(up) == 0
    with pytest.raises(pw.HostError, match=r"rejects this token: .*, or was revoked"):
        pw.connect("lab", token=old)
    step = attached(token=new)
    np.testing.assert_array_equal(step(jnp.arange(4.0)), 2 * np.arange(4.0) + 1)
    assert pw_cluster.main(["end", "lab", "ann", "--token", str(new)]) == 0
    with pytest.raises(pw.HostError, match="requested by pw-cluster end"):
        np.asarray(step(jnp.arange(4.0)))


def test_service_imports_no_jax():
    code = "import sys, pathways.runtime.clusters.service_process; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_accounts_outlive_clients_and_the_cluster(lab, tmp_path, capfd):
    """A table shows accounts while the cluster is up, and a file has them afterwards."""
    assert pw_cluster.main(["up", str(tmp_path / "lab.toml")]) == 0
    step = attached(client="ann")
    np.testing.assert_array_equal(step(jnp.arange(4.0)), 2 * np.arange(4.0) + 1)
    pw.disconnect()
    capfd.readouterr()
    assert pw_cluster.main(["accounts", "lab", "--by", "client", "--json"]) == 0
    (ann,) = json.loads(capfd.readouterr().out)
    # One step on two islands.
    assert (ann["client"], ann["program"], ann["use"]["steps"]) == ("ann", "", 2)
    assert pw_cluster.main(["accounts", "lab"]) == 0
    heads, *rows = capfd.readouterr().out.splitlines()
    assert heads.split()[:3] == ["client", "program", "island"]
    assert {tuple(row.split()[:3]) for row in rows} >= {("ann", "-", "island0"), ("ann", "-", "island1")}
    assert pw_cluster.main(["accounts", "lab", "--by", "machine"]) == 1
    assert "--by machine: 'machine' is none of client, program, island" in capfd.readouterr().err
    assert pw_cluster.main(["down", "lab"]) == 0
    lines = [json.loads(line) for line in lab.accounts.read_text().splitlines()]
    assert sum(line["account"]["use"]["steps"] for line in lines) == 2
    assert all(line["since"] < line["until"] for line in lines)
    assert lab.accounts.stat().st_mode & 0o077 == 0

"""A client whose steps loop for ever, on the islands of another client, which computes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways as pw
from pathways.runtime.service.protocol.folders import ClusterFolder
from pathways.tools import pw_cluster

pytestmark = pytest.mark.process

NEIGHBOUR = """
import sys
import numpy as np
import pathways as pw

pw.connect("lab", client="bo")
slice = pw.make_virtual_device_set().add_slice((1,), axis_names=("x",), island="island0")
add = pw.jit(lambda x: x + 1, devices=slice)
x = np.zeros(2, np.float32)
for line in sys.stdin:
    try:
        x = np.asarray(add(x))
        print(*x, flush=True)
    except pw.HostError as error:
        print(str(error).splitlines()[0], flush=True)
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterFolder]:
    """Starts a cluster in which a step of ann may run for a second."""
    monkeypatch.setenv("PW_CLUSTERS", str(tmp_path))
    (tmp_path / "lab.toml").write_text("[[islands]]\ncount = 2\n[clients.ann]\nstep_limit = 1\n")
    pw.disconnect()
    assert pw_cluster.main(["up", str(tmp_path / "lab.toml")]) == 0
    yield ClusterFolder("lab")
    pw.disconnect()
    assert pw_cluster.main(["down", "lab"]) == 0


@pytest.fixture
def bo(lab: ClusterFolder) -> Iterator[subprocess.Popen[str]]:
    """Starts a client that adds 1 on island0 whenever it gets a line, and prints the sum or its error."""
    command = [sys.executable, "-c", NEIGHBOUR]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def add(process: subprocess.Popen[str]) -> str:
    """Has the neighbour add 1; returns what it prints."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def loop(x: jax.Array) -> jax.Array:
    """Computes for many minutes."""
    return jax.lax.fori_loop(0, 2**31 - 1, lambda _, y: jnp.sin(y), x)


def test_step_limit_ends_loops_and_other_clients_compute_on(lab, bo, capfd):
    """The program that has ended its island twice is not run there again; others of its client are."""
    pw.connect("lab", client="ann")
    slice = pw.make_virtual_device_set().add_slice((1,), axis_names=("x",), island="island0")
    forever, double = pw.jit(loop, devices=slice), pw.jit(lambda x: x * 2, devices=slice)
    # The neighbour has run on the workers that are lost, or it would not see the loss.
    assert add(bo) == "1.0 1.0"
    x, total = np.ones(2, np.float32), 1.0
    for _ in range(2):
        looped = forever(x)
        # The neighbour computes until the loop runs; then it waits, and sees why its island is lost.
        while "is lost" not in (reply := add(bo)):
            total += 1
            assert reply == f"{total} {total}"
        why = "of client 'ann' ran for longer than its step_limit of 1 s"
        assert why in reply
        with pytest.raises(pw.HostError, match=why):
            np.asarray(looped)
        total += 1
        assert add(bo) == f"{total} {total}"
    with pytest.raises(pw.HostError) as caught:
        np.asarray(forever(x))
    assert (
        "program 'loop' of client 'ann' has ended island0 twice: "
        "it is not run there again (until pw-cluster down)"
    ) in str(caught.value)
    np.testing.assert_array_equal(double(x), 2 * x)
    assert add(bo) == f"{total + 1} {total + 1}"
    capfd.readouterr()
    assert pw_cluster.main(["status", "lab", "--json"]) == 0
    status = json.loads(capfd.readouterr().out)
    assert [island["losses"] for island in status["islands"]] == [2, 0]
    assert {island["state"] for island in status["islands"]} == {"running"}


UNMODIFIED = """
import jax
import jax.numpy as jnp

try:
    jax.jit(lambda x: jax.lax.fori_loop(0, 2**31 - 1, lambda _, y: jnp.sin(y), x))(1.0).block_until_ready()
except Exception as error:
    print(str(error).splitlines()[0])
"""


def test_step_limit_ends_steps_of_unmodified_programs(lab):
    """A program of plain JAX is recognized when it is started again."""
    tool = "import sys; from pathways.tools import pw_cluster; sys.exit(pw_cluster.main())"
    command = [sys.executable, "-c", tool, "run", "lab", "--client", "ann", "--islands", "island0", "--"]
    limited, refused = "ran for longer than its step_limit of 1 s", "of client 'ann' has ended island0 twice"
    for why in (limited, limited, refused):
        program = [sys.executable, "-c", UNMODIFIED]
        run = subprocess.run([*command, *program], capture_output=True, text=True, timeout=120)
        assert why in run.stdout


def test_program_that_crashes_its_worker_twice_is_refused(lab, capfd):
    """A loss by SIGKILL between the crashes is not charged."""
    pw.connect("lab", client="eve")
    slice = pw.make_virtual_device_set().add_slice((1,), axis_names=("x",), island="island0")
    forever = pw.jit(loop, devices=slice)
    x = np.ones(2, np.float32)
    for end in (signal.SIGSEGV, signal.SIGKILL, signal.SIGSEGV):
        looped = forever(x)
        while not pw.status().steps:
            time.sleep(0.05)
        time.sleep(0.2)
        capfd.readouterr()
        assert pw_cluster.main(["status", "lab", "--json"]) == 0
        (host,) = json.loads(capfd.readouterr().out)["islands"][0]["hosts"]
        os.kill(host["pid"], end)
        with pytest.raises(pw.HostError, match=f"killed by signal {end}"):
            np.asarray(looped)
    with pytest.raises(pw.HostError, match="program 'loop' of client 'eve' has ended island0 twice"):
        np.asarray(forever(x))

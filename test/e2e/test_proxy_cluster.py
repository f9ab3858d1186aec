"""Unmodified JAX programs on a cluster that many share, by `pw-cluster run`."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.hosts]

Tool = Callable[..., subprocess.CompletedProcess[str]]

FILE = """
    [[islands]]
    hosts = 2
    devices_per_host = 2

    [[islands]]
    devices_per_host = 2
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tool]:
    """Starts a cluster called lab, and yields a function that runs `pw-cluster`."""
    folder = tmp_path_factory.mktemp("cluster")
    folder.chmod(0o700)
    file = folder / "lab.toml"
    file.write_text(textwrap.dedent(FILE))
    environment = os.environ | {"PW_CLUSTERS": str(folder / "clusters")}

    def tool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pathways.tools.pw_cluster", *map(str, arguments)]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    done = tool("up", file)
    assert done.returncode == 0, done.stderr
    yield tool
    assert tool("down", "lab").returncode == 0


PROGRAM = """
import jax, jax.numpy as jnp

devices = jax.devices()
print([(d.id, d.slice_index, d.virtual_task_index) for d in devices])
over = jax.sharding.NamedSharding(jax.sharding.Mesh(devices[:4], ("x",)), jax.P("x"))
step = jax.jit(lambda w, x: w + x.sum(), donate_argnums=0)
w = x = jax.device_put(jnp.arange(8.0), over)
w = jnp.copy(w)
for _ in range(3):
    w = step(w, x)
print(jax.device_put(w, devices[-1]))
raise SystemExit(7)
"""


def test_pw_cluster_run_runs_a_program_on_all_devices(cluster: Tool) -> None:
    done = cluster("run", "lab", "--client", "ann", "--", sys.executable, "-c", PROGRAM)
    assert done.returncode == 7, done.stderr[-2000:]
    assert done.stdout.splitlines() == [
        "[(0, 0, 0), (1, 0, 0), (2, 0, 1), (3, 0, 1), (4, 1, 2), (5, 1, 2)]",
        "[84. 85. 86. 87. 88. 89. 90. 91.]",
    ]
    status = cluster("status", "lab").stdout
    assert "no clients" in status
    assert status.count(" 0 B ") == 3, status


def test_a_program_may_use_some_islands(cluster: Tool) -> None:
    program = "import jax; print([(d.id, hasattr(d, 'slice_index')) for d in jax.devices()])"
    done = cluster("run", "lab", "--islands", "island1", "--", sys.executable, "-c", program)
    assert done.stdout == "[(4, False), (5, False)]\n", done.stderr[-2000:]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nolab", "--", "true"], "no cluster 'nolab' is up"),
        (["lab", "--islands", "island7", "--", "true"], "--islands: island7 does not exist"),
        (["lab", "--islands", "island0,island0", "--", "true"], "--islands: island0 is listed twice"),
        (["lab", "--client", "a b", "--", "true"], "'a b' is not a name of a client"),
        (["lab"], "expected -- and a program"),
        (["lab", "--", "no such program"], "program not found: 'no such program'"),
    ],
)
def test_bad_requests_are_one_line(cluster: Tool, arguments: list[str], error: str) -> None:
    done = cluster("run", *arguments)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"pw-cluster: error: {error}"), done.stderr
    assert "Traceback" not in done.stderr

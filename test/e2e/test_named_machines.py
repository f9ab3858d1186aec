"""Workers that commands start, such as `ssh`, for which scripts stand in."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import stat
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from check import assert_close
from fake_scontrol import write_scontrol
from jax.sharding import PartitionSpec as P
from on_hosts import refused

import pathways as pw
from pathways import HostError
from pathways.runtime.clusters.connect import controller

pytestmark = pytest.mark.usefixtures("own_workers")

STAND_IN = """#!/bin/sh
# Stands in for ssh: gets the name of a machine, and a command, which runs here when the machine exists.
machine=$1; shift
echo "$machine $*" >> {folder}/log
echo "Welcome to it" >&2
if test -e {folder}/cut; then echo "No route to host" >&2; exit 255; fi
case $machine in
  nowhere) echo "Could not resolve hostname nowhere" >&2; exit 255;;
esac
exec "$@"
"""


@pytest.fixture
def ssh(tmp_path: Path) -> str:
    script = tmp_path / "ssh"
    script.write_text(STAND_IN.format(folder=tmp_path))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def launcher(ssh: str, machines: Sequence[str] | None = None, **settings: str) -> pw.Ssh:
    return pw.Ssh(machines, **{"bind": "127.0.0.1", "start": f"{ssh} {{host}} {{command}}", **settings})


def test_named_machines_run_islands_and_start_anew(devices, ssh: str, monkeypatch):
    """One island has one machine and one has two; no command line shows the secret."""
    folder = Path(ssh).parent
    islands = [pw.Island(hosts=["a"]), pw.Island(hosts=["b", "c"], devices_per_host=2)]
    monkeypatch.setenv("OF_CALLER", "inherited")
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        pw.connect(launcher(ssh), islands=islands)
    assert {f"{name}: Welcome to it" for name in "abc"} <= {*stderr.getvalue().splitlines()}
    a, b = (devices.add_slice((n,), ("x",), island=f"island{k}") for k, n in enumerate((1, 4)))
    f = pw.jit(lambda x: x + 1, devices=a)
    g = pw.jit(lambda x: x * 2, devices=b, in_shardings=P("x"))
    program = pw.program(lambda x: g(f(x)))
    x = np.arange(8, dtype=np.float32)
    assert_close(program(x), (x + 1) * 2)
    log = (folder / "log").read_text().splitlines()
    # Machines are started at the same time.
    assert sorted(line.split()[0] for line in log) == ["a", "b", "c"], log
    for host in controller().hosts:
        process = Path(f"/proc/{host.process.pid}")
        assert "OF_CALLER=inherited" in (process / "environ").read_text()
        words = (process / "cmdline").read_text().split("\0")
        assert words[-4:] == ["-P", "-m", "pathways.runtime.clusters.worker_process", ""], words
    held = pw.program(f)(x).block_until_ready()
    os.kill(controller().hosts[0].process.pid, signal.SIGKILL)
    with refused(HostError, "host 0 (island0) is lost: its process has ended (killed by signal 9)"):
        while True:
            held.block_until_ready()
    assert_close(program(x), (x + 1) * 2)
    assert (folder / "log").read_text().splitlines()[3].startswith("a ")


@pytest.mark.quick
@pytest.mark.parametrize(
    ("machines", "settings", "first", "last"),
    [
        (
            ["a", "nowhere"],
            {},
            "host 1 (nowhere) did not start (exit code 255)\n  | ",
            "\n  | Could not resolve hostname nowhere",
        ),
        (
            ["a"],
            {"start": "/no/such/command {host} {command}"},
            "host 0 (a) did not start: cannot run '/no/such/command': ",
            "",
        ),
        (["a"], {"python": "/no/such/python"}, "host 0 (a) did not start (exit code 127)\n  | ", ""),
        (["a"], {"platform": "cuda"}, "host 0 (a) did not start (exit code 1)", ""),
    ],
    ids=["name", "command", "python", "platform"],
)
def test_named_machines_report_a_failed_start(ssh: str, machines, settings, first, last):
    """The message has the machine, the exit status of the command and its last output."""
    platform = settings.pop("platform", None)
    with pytest.raises(HostError) as error:
        pw.connect(launcher(ssh, machines, **settings), platform=platform)
    message = str(error.value)
    assert message.startswith(first), message
    assert message.endswith(last), message
    assert settings.get("python", "") in message
    assert platform is None or "JAX has no cuda devices here" in message


def test_named_machines_are_tried_again(devices, ssh: str):
    """The network is cut meanwhile: calls wait until it heals, and only for a limited time."""
    cut, log = (Path(ssh).parent / name for name in ("cut", "log"))
    options = pw.HostOptions(restart_seconds=20)
    pw.connect(launcher(ssh, ["a", "b"]), options=options)
    f, g = (pw.jit(lambda x: x + 1, devices=devices.add_slice(1, "x", island=f"island{k}")) for k in range(2))
    program, beside = pw.program(lambda x: g(f(x))), pw.program(g)
    x = np.arange(4, dtype=np.float32)
    kept = beside(x)
    assert_close(program(x), x + 2)
    held = pw.program(f)(x).block_until_ready()
    cut.touch()
    os.kill(controller().hosts[0].process.pid, signal.SIGKILL)
    with refused(HostError, "host 0 (island0) is lost"):
        while True:
            held.block_until_ready()
    heals = threading.Timer(4.0, cut.unlink)
    heals.start()
    # It waits.
    assert_close(program(x), x + 2)
    assert not cut.exists()
    heals.join()
    assert_close(kept, x + 1)
    pids = [host.pid for host in pw.status().hosts]
    assert len(set(pids)) == 2, pids
    lines = log.read_text().split("\n")
    assert sum(line.startswith("a ") for line in lines) > 3, lines


def test_named_machines_end_a_worker_with_its_standard_input(ssh: str):
    """With its command killed and the network cut, only the end of standard input reaches the worker."""
    pw.connect(launcher(ssh, ["a"]))
    process = controller().hosts[0].process._process
    os.kill(process.pid, 0)
    process.stdin.close()
    assert process.wait(10) == 0


def test_slurm_starts_workers_on_its_nodes(tmp_path: Path, monkeypatch):
    """Scripts stand in for srun and scontrol; srun checks its options."""
    srun = tmp_path / "srun"
    srun.write_text(f"""#!/bin/sh
echo "$*" >> {tmp_path}/log
test "$1 $2 $4 $5" = "--overlap -w -N1 -n1" || exit 2
shift 5; exec "$@"
""")
    srun.chmod(0o755)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[08-09]")
    write_scontrol(tmp_path, monkeypatch, {"n[08-09]": ["n08", "n09"]})
    cluster = pw.connect(pw.Slurm(bind="127.0.0.1"), devices_per_host=2)
    assert [len(island.devices) for island in cluster.islands] == [2, 2]
    assert pw.connect(pw.Slurm(bind="127.0.0.1"), devices_per_host=2) is cluster
    lines = sorted((tmp_path / "log").read_text().splitlines())
    assert [line.split()[:5] for line in lines] == [
        f"--overlap -w {n} -N1 -n1".split() for n in ("n08", "n09")
    ]

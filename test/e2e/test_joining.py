"""Workers that join, as under mpirun: they may come before the controller, and again when one is lost."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cli import run_tool
from on_hosts import run

import pathways as pw
from pathways.runtime.hosts.launch.join_launcher import secret_of

JOIN = [sys.executable, "-P", "-m", "pathways.tools.pw_worker"]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef0123456789abcdef\n")
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    return path


@pytest.mark.process
@pytest.mark.feature("hosts", "hosts")
def test_joining_workers_become_hosts(secret: Path):
    """Two come before the controller, and one of them requests to be host 1; they end with it."""
    command = [*JOIN, "--join", "127.0.0.1:20500", "--secret-file", str(secret)]
    early = [
        subprocess.Popen([*command, *which], stderr=subprocess.PIPE, text=True)
        for which in (["--host=1"], [])
    ]
    try:
        run(f"""
join = pw.Join(secret_file="{secret}", bind="127.0.0.1", ports=(20500, 20599))
pw.connect(join, hosts=2, options=pw.HostOptions(heartbeat=5))
f, g = (pw.jit(lambda x: x + 1, devices=devices.add_slice(1, "x", island=f"island{{k}}")) for k in range(2))
program = pw.program(lambda x: g(f(x)))
x = np.arange(4, dtype=np.float32)
assert_equal(program(x), x + 2)
hosts = [host.pid for host in pw.status().hosts]
parents = [int(open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()[1]) for pid in hosts]
assert parents[1] == {early[0].pid} and parents[0] == {early[1].pid}
held = pw.program(f)(x).block_until_ready()
os.kill(hosts[0], signal.SIGKILL)
with refused(HostError, "host 0 (island0) is lost: its process has ended (killed by signal 9)"):
    while True:
        held.block_until_ready()
assert_equal(program(x), x + 2)
assert [host.pid for host in pw.status().hosts][1] == hosts[1]
held = pw.program(g)(x)
os.kill({early[0].pid}, signal.SIGKILL)
with refused(HostError, "host 1 (island1) is lost"):
    while True:
        held.block_until_ready()


def lives(pid):
    try:
        return bool(open(f"/proc/{{pid}}/cmdline").read())
    except OSError:
        return False


while lives(hosts[1]):
    time.sleep(0.05)
""")
        assert early[1].wait(20) == 0
        lines = re.sub(r"worker \d+", "worker N", early[1].stderr.read()).splitlines()
        assert [line for line in lines if not line.startswith("pw-worker: cannot join")][:4] == [
            "pw-worker: joined 127.0.0.1:20500",
            "pw-worker: host 0: worker N runs",
            "pw-worker: host 0: worker N is lost: killed by signal 9",
            "pw-worker: host 0: worker N replaces it",
        ]
        assert lines[-1] == "pw-worker: left 127.0.0.1:20500"
    finally:
        for process in early:
            process.kill()
            process.communicate()


def test_joining_refuses_a_secret_readable_by_others(own_workers, secret: Path):
    assert secret_of(str(secret)) == b"0123456789abcdef0123456789abcdef"
    secret.chmod(0o640)
    message = rf"secret_file='{secret}' can be read by others \(mode 0640\): chmod 600"
    join = pw.Join(secret_file=str(secret), bind="127.0.0.1", ports=(20500, 20599))
    with pytest.raises(ValueError, match=message):
        pw.connect(join, hosts=1)
    done = subprocess.run(
        [*JOIN, "--join", "127.0.0.1:1", "--secret-file", str(secret)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "can be read by others (mode 0640)" in done.stderr
    secret.chmod(0o600)
    secret.write_text("short")
    with pytest.raises(ValueError, match="has 5 bytes; expected at least 16 random ones"):
        pw.connect(join, hosts=1)


@pytest.mark.quick
@pytest.mark.process
def test_joining_reports_wrong_workers(secret: Path):
    complete = {"secret_file": str(secret), "bind": "127.0.0.1", "ports": (7000, 7009)}
    for missing in complete:
        with pytest.raises(ValueError, match=r"Join: expected secret_file=, bind= and ports=\(first, last\)"):
            pw.Join(**(complete | {missing: None}))
    with pytest.raises(ValueError, match=r"expected .*; machines join at the first port"):
        pw.Join(**(complete | {"ports": (7000, 7000)}))
    with pytest.raises(ValueError, match=r"connect: Join needs islands=.*, or hosts="):
        pw.connect(pw.Join(**complete))
    join = [*JOIN, "--secret-file", str(secret), "--wait=0", "--join"]
    done = subprocess.run([*join, "127.0.0.1"], capture_output=True, text=True, check=False)
    assert "'127.0.0.1': expected an address and a port, as in 10.0.0.5:7000" in done.stderr
    for words, error in (
        (["--join=127.0.0.1:1"], "--join and --secret-file go together"),
        (["--ready", "--drain=1"], "expected --join, --ready or --drain; see pw-worker --help"),
        (["--ready"], "expected --folder, or PW_READY_DIR in the environment"),
        (["--drain=soon"], "argument --drain: must be a number of seconds, got 'soon'"),
    ):
        done = run_tool("pw-worker", *words)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"pw-worker: error: {error}")
    done = subprocess.run([*join, "127.0.0.1:1"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("pw-worker: error: cannot join 127.0.0.1:1: ")

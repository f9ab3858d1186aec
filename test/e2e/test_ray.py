"""Workers that Ray starts: in a network of their own that has only loopback, and that ends with the test."""

from __future__ import annotations

import subprocess
import sys

import pytest
from on_hosts import PREPARE

pytestmark = [pytest.mark.process, pytest.mark.needs("ray", "namespaces")]

_ALONE = ["unshare", "-n", "-p", "-f", "--kill-child", "--mount-proc", "sh", "-c"]


def run(script: str, timeout: float = 500) -> str:
    """Runs a controller alone in its network; it and all processes that it starts end within the time."""
    done = subprocess.run(
        [*_ALONE, 'ip link set lo up && "$@"', "sh", sys.executable, "-c", PREPARE + script],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


def test_ray_starts_islands():
    """Islands run programs, come back when one of their hosts is lost, and leave no process behind."""
    run("""
import itertools
from pathlib import Path


def commands():
    return [
        line
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and entry.name != str(os.getpid())
        for line in [(entry / "cmdline").read_bytes().replace(bytes(1), b" ").decode()]
        if line and not line.startswith("sh -c")
    ]


islands = [pw.Island(hosts=2, devices_per_host=2), pw.Island(devices_per_host=2)]
pw.connect(pw.Ray(), islands=islands, options=pw.HostOptions(heartbeat=8))
wide, narrow = devices.add_slice((4,), ("x",)), devices.add_slice((2,), ("x",))
a, b = (pw.jit(f, devices=slice, in_shardings=(None, P("x"))) for f, slice in ((front, wide), (back, narrow)))
program = pw.program(lambda w, x: b(w, a(w, x)))
expected = jax.jit(lambda w, x: back(w, front(w, x)))(W, X)
assert_close(program(W, X), expected, 1e-5)

# Hosts call functions of modules that this process finds, write checkpoints, and make batches.
import tempfile

h = program(W, X)
said = pw.on_hosts("host_functions:total", devices=narrow)(h).result()
assert abs(said[0]["sum"] - np.asarray(h).sum()) < 1e-3, said
with tempfile.TemporaryDirectory() as folder:
    pw.checkpoint.save(folder, {"h": h}, 1).wait()
    assert_equal(pw.checkpoint.restore(folder, {"h": h}), {"h": np.asarray(h)})
rows = pw.on_hosts("host_functions:numbered", seed=1)
total = pw.jit(lambda x: x.sum(0), devices=wide, in_shardings=P("x"))
step = pw.program(lambda batch: (total(batch["x"]), total(batch["y"][0]), total(batch["y"][1]["z"])))
step = step.lower({"x": X, "y": (X[:, 0].astype(int), {"z": X[:, 0].astype(int)})}).compile()
with pw.prefetch(rows, step, "batch", rows=8, count=3) as batches:
    assert [int(step(batch)[1]) for batch in batches] == [28, 92, 156]

for signals in (signal.SIGKILL, signal.SIGSTOP):
    os.kill(controller().hosts[1].process.pid, signals)
    with refused(HostError, "host 1 (island0) is lost"):
        while True:
            program(W, X).block_until_ready()
    assert_close(program(W, X), expected, 1e-5)
assert sum("runtime.clusters.worker_process" in command for command in commands()) == 3

# Ray has places for three hosts: an island gets all places that it needs, or none.
from pathways.runtime.hosts.launch import ray_launcher

import ray

launcher = ray_launcher.RayLauncher(pw.Ray(), 9, 1)
configs = [ray_launcher.WorkerConfig("/nowhere", "", 7 + rank, 0, rank, 2, 1, 2.0, 20.0) for rank in range(2)]
with refused(HostError, "host 7: Ray has no place for an island of 2 hosts"):
    launcher.launch(configs, 2.0, threading.Event())

for slice in (wide, narrow):
    pw.release(slice)
pw.disconnect()
deadline = time.monotonic() + 60
while commands() and time.monotonic() < deadline:
    time.sleep(0.1)
assert not commands(), commands()
""")


def test_ray_ends_workers_with_their_controller():
    run(
        """
import subprocess
from pathlib import Path

script = '''
import os, signal, sys, time
import pathways as pw
pw.connect(pw.Ray(), islands=[pw.Island(hosts=2)])
os.kill(os.getpid(), int(sys.argv[1]))
time.sleep(60)
'''

def left():
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and entry.name != str(os.getpid()):
            try:
                found.append((entry / "cmdline").read_bytes().decode().split(chr(0)))
            except OSError:
                pass
    worker = "pathways.runtime.clusters.worker_process"
    return [words for words in found if worker in words or words[0].startswith("ray::AgentActor")]


for number in (signal.SIGKILL, signal.SIGTERM):
    assert subprocess.run([sys.executable, "-c", script, str(int(number))], timeout=300).returncode != 0
    deadline = time.monotonic() + 60
    while left() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left(), left()
"""
    )


def test_ray_refuses_wrong_settings():
    import pathways as pw

    with pytest.raises(
        ValueError, match=r"connect: Ray needs islands=\[pathways.Island\(...\), ...\], or hosts="
    ):
        pw.connect(pw.Ray())
    with pytest.raises(ValueError, match=r"bind='0.0.0.0' is every address"):
        pw.Ray(bind="0.0.0.0")
    with pytest.raises(ValueError, match=r"hosts=\['a'\]: Ray finds the machines itself"):
        pw.connect(pw.Ray(), islands=[pw.Island(["a"])])


def test_ray_replaces_a_lost_machine():
    """Each host has a node of Ray for itself. The island of a lost one comes back when there is another."""
    run(
        """
import subprocess
from pathlib import Path


# Ray considers loopback a sign of systems where it has one node alone.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "1"
os.environ["RAY_AUTH_MODE"] = "disabled"
# By default it takes a quarter of a minute to notice that a node is lost.
os.environ["RAY_health_check_period_ms"] = "1000"


def start_node(*options):
    ray = str(Path(sys.executable).parent / "ray")
    command = [ray, "start", "--num-cpus=1", "--disable-usage-stats", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def node_of(host):
    return parent(parent(host.process.pid))


head = "127.0.0.1:6379"
start_node("--head", "--node-ip-address=127.0.0.1", "--port=6379", "--include-dashboard=false")
for _ in range(3):
    start_node(f"--address={head}", "--node-ip-address=127.0.0.1")
islands = [pw.Island(hosts=2), pw.Island(), pw.Island()]
pw.connect(pw.Ray(address=head), islands=islands, options=pw.HostOptions(heartbeat=8))
wide, single, other = (
    devices.add_slice((n,), ("x",), island=f"island{k}") for k, n in enumerate((2, 1, 1))
)
a = pw.jit(lambda x: x + jnp.sum(x), devices=wide, in_shardings=P("x"))
b, c = (pw.jit(lambda x, k=k: x * k, devices=slice) for k, slice in ((2, single), (3, other)))
program, beside = pw.program(lambda x: c(b(a(x)))), pw.program(lambda x: c(b(x)))
value = np.arange(4, dtype=np.float32)
assert_equal(program(value), 6 * value + 36)
nodes = [node_of(host) for host in controller().hosts]
assert len({*nodes}) == 4, nodes
kept = beside(value)
assert_equal(kept, 6 * value)
before = [host.process.pid for host in controller().hosts]
# Not the first machine, which Ray needs.
victim = next(
    host
    for host in controller().hosts[:2]
    if "--head" not in Path(f"/proc/{nodes[host.index]}/cmdline").read_text()
)
os.kill(nodes[victim.index], signal.SIGKILL)
with refused(HostError, "(island0) is lost"):
    while True:
        program(value).block_until_ready()
assert_equal(kept, 6 * value)
assert_equal(beside(value), 6 * value)
start_node(f"--address={head}", "--node-ip-address=127.0.0.1")
assert_equal(program(value), 6 * value + 36)
now = [host.process.pid for host in controller().hosts]
assert now[2:] == before[2:] and not {*now[:2]} & {*before[:2]}
assert len({node_of(host) for host in controller().hosts}) == 4
for slice in (wide, single, other):
    pw.release(slice)
pw.disconnect()
"""
    )

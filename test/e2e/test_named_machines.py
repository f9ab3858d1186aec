"""Workers that commands start, such as `ssh`, for which scripts stand in."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from on_hosts import run

STAND_IN = """#!/bin/sh
# As ssh: the name of a machine, and a command, which runs there when there is such a machine.
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


def test_machines_with_names(ssh: str):
    """An island of one and one of two; nobody reads the secret on a command line; it goes on anew."""
    run(f"""
import contextlib
import io

folder = "{Path(ssh).parent}"
islands = [pw.Island(hosts=["a"]), pw.Island(hosts=["b", "c"], devices_per_host=2)]
os.environ["OF_CALLER"] = "inherited"
with contextlib.redirect_stderr(io.StringIO()) as stderr:
    pw.connect(islands=islands, bind="127.0.0.1", start="{ssh} {{host}} {{command}}")
assert {{f"{{name}}: Welcome to it" for name in "abc"}} <= {{*stderr.getvalue().splitlines()}}
a, b = (devices.add_slice((n,), ("x",), island=f"island{{k}}") for k, n in enumerate((1, 4)))
f = pw.jit(lambda x: x + 1, devices=a)
g = pw.jit(lambda x: x * 2, devices=b, in_shardings=P("x"))
program = pw.program(lambda x: g(f(x)))
x = np.arange(8, dtype=np.float32)
assert_equal(program(x), (x + 1) * 2)
log = open(folder + "/log").read().splitlines()
assert [line.split()[0] for line in log] == ["a", "b", "c"], log
for host in controller().hosts:
    environment = open(f"/proc/{{host.process.pid}}/environ").read()
    assert "OF_CALLER=inherited" in environment
    words = open(f"/proc/{{host.process.pid}}/cmdline").read().split("\\0")
    assert words[-4:] == ["-P", "-m", "pathways.runtime.hosts.worker.process", ""], words
held = pw.program(f)(x).block_until_ready()
os.kill(controller().hosts[0].process.pid, signal.SIGKILL)
with refused(HostError, "host 0 (island0) is lost: its process has ended (killed by signal 9)"):
    while True:
        held.block_until_ready()
assert_equal(program(x), (x + 1) * 2)
assert open(folder + "/log").read().splitlines()[3].startswith("a ")
""")


def test_what_does_not_start(ssh: str):
    """Said within moments, with the machine, how the command ended and what it wrote last."""
    run(f"""
def start(*machines, **settings):
    began = time.monotonic()
    settings = {{"start": "{ssh} {{host}} {{command}}", **settings}}
    try:
        pw.connect(hosts=machines, bind="127.0.0.1", **settings)
    except HostError as error:
        assert time.monotonic() - began < 20
        return str(error)
    raise AssertionError("it has started")

said = start("a", "nowhere")
assert said.startswith("host 1 (nowhere) did not start (exit code 255)\\n  | "), said
assert said.endswith("\\n  | Could not resolve hostname nowhere"), said
said = start("a", start="/no/such/command {{host}} {{command}}")
assert said.startswith("host 0 (a) did not start: cannot run '/no/such/command': "), said
said = start("a", python="/no/such/python")
assert said.startswith("host 0 (a) did not start (exit code 127)\\n  | "), said
assert "/no/such/python" in said
said = start("a", platform="cuda")
assert said.startswith("host 0 (a) did not start (exit code 1)"), said
assert "JAX has no cuda devices here" in said
""")


def test_a_start_that_fails_is_tried_again(ssh: str):
    """As while a network is cut: calls wait until it heals, and at most for so long."""
    run(f"""
from pathlib import Path

cut = Path("{Path(ssh).parent}/cut")
options = pw.HostOptions(restart_seconds=20)
pw.connect(hosts=["a", "b"], bind="127.0.0.1", start="{ssh} {{host}} {{command}}", options=options)
f, g = (pw.jit(lambda x: x + 1, devices=devices.add_slice(1, "x", island=f"island{{k}}")) for k in range(2))
program, beside = pw.program(lambda x: g(f(x))), pw.program(g)
x = np.arange(4, dtype=np.float32)
kept = beside(x)
assert_equal(program(x), x + 2)
held = pw.program(f)(x).block_until_ready()
cut.touch()
os.kill(controller().hosts[0].process.pid, signal.SIGKILL)
with refused(HostError, "host 0 (island0) is lost"):
    while True:
        held.block_until_ready()
threading.Timer(4.0, cut.unlink).start()
began = time.monotonic()
# It waits.
assert_equal(program(x), x + 2)
assert not cut.exists()
assert_equal(kept, x + 1)
pids = [host.pid for host in pw.status().hosts]
assert len(set(pids)) == 2, pids
log = Path("{Path(ssh).parent}/log").read_text().split("\\n")
assert sum(line.startswith("a ") for line in log) > 3, log
""")


def test_a_worker_ends_with_its_standard_input(ssh: str):
    """That of the command, when it is killed and the network is cut: nothing else tells the worker then."""
    run(f"""
pw.connect(hosts=["a"], bind="127.0.0.1", start="{ssh} {{host}} {{command}}")
process = controller().hosts[0].process._process
os.kill(process.pid, 0)
process.stdin.close()
assert process.wait(10) == 0
""")


def test_nodes_of_slurm(tmp_path: Path):
    """A script stands in for srun, and finds the options that it is to find."""
    srun = tmp_path / "srun"
    srun.write_text(f"""#!/bin/sh
echo "$*" >> {tmp_path}/log
test "$1 $2 $4 $5" = "--overlap -w -N1 -n1" || exit 2
shift 5; exec "$@"
""")
    srun.chmod(0o755)
    run(f"""
os.environ.update(SLURM_JOB_NODELIST="n[08-09]", PATH="{tmp_path}:" + os.environ["PATH"])
cluster = pw.connect("slurm", bind="127.0.0.1", devices_per_host=2)
assert [len(island.devices) for island in cluster.islands] == [2, 2]
assert pw.connect("slurm", bind="127.0.0.1", devices_per_host=2) is cluster
lines = sorted(open("{tmp_path}/log").read().splitlines())
assert [line.split()[:5] for line in lines] == [f"--overlap -w {{n}} -N1 -n1".split() for n in ("n08", "n09")]
""")

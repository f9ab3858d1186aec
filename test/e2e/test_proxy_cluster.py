"""Unmodified JAX programs on a cluster that many share, by `pw-cluster run`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.process, pytest.mark.hosts]

FILE = """
    [[islands]]
    hosts = 2
    devices_per_host = 2

    [[islands]]
    devices_per_host = 2
"""


class Tool:
    """`pw-cluster`, with clusters in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._environment = os.environ | {"PW_CLUSTERS": str(folder)}

    def __call__(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs it to its end."""
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """Starts it."""
        return self.python("-m", "pathways.tools.pw_cluster", *arguments)

    def python(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """Starts Python in a process group of its own."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env=self._environment,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
        )

    @contextlib.contextmanager
    def ready(self, client: str, program: str, *flags: str) -> Iterator[subprocess.Popen[str]]:
        """Starts a program, waits until it has printed `ready`, and kills what is left of it."""
        arguments = ("run", "lab", "--client", client, *flags, "--", sys.executable, "-c", program)
        with self.start(*arguments) as process:
            assert process.stdout is not None
            try:
                assert process.stdout.readline() == "ready\n", process.communicate()[1][-2000:]
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def wait_until_free(self, islands: int = 3) -> None:
        """Waits until there is no client, and no host has an array."""
        deadline = time.monotonic() + 30
        while True:
            status = self("status", "lab").stdout
            if "no clients" in status and status.count(" 0 B\n") == islands:
                return
            assert time.monotonic() < deadline, status
            time.sleep(0.1)


@contextlib.contextmanager
def up(folder: Path, text: str) -> Iterator[Tool]:
    """Starts a cluster called lab."""
    folder.chmod(0o700)
    file = folder / "lab.toml"
    file.write_text(textwrap.dedent(text))
    tool = Tool(folder / "clusters")
    done = tool("up", file)
    assert done.returncode == 0, done.stderr
    try:
        yield tool
    finally:
        tool("down", "lab")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tool]:
    """Starts a cluster of two islands, of two hosts and of one."""
    with up(tmp_path_factory.mktemp("cluster"), FILE) as tool:
        yield tool


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
    cluster.wait_until_free()


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


HOLDING = """
import os, time
import jax, jax.numpy as jnp

devices = jax.devices()
over = jax.sharding.NamedSharding(jax.sharding.Mesh(devices[:4], ("x",)), jax.P("x"))
x = jax.device_put(jnp.ones(1 << 20), over)
step = jax.jit(lambda x: x * x.sum() / (1 << 20), donate_argnums=0)
x = step(x)
print("ready", flush=True)
"""


def test_the_status_has_a_program_as_a_client(cluster: Tool) -> None:
    """The process is that of the program, not of the front; each island is a slice of all its devices."""
    with cluster.ready("ann", HOLDING + "print(os.getpid(), flush=True); input()") as process:
        assert process.stdout is not None
        number = int(process.stdout.readline())
        (client,) = json.loads(cluster("status", "lab", "--json").stdout)["clients"]
        assert (client["name"], client["bytes"] >= 4 << 20, client["steps_done"] >= 1) == ("ann", True, True)
        assert (client["process"], client["address"]) == (number, "this machine")
        assert [slice["devices"] for slice in client["slices"]] == [[0, 1, 2, 3], [4, 5]]
        refused = cluster("run", "lab", "--client", "ann", "--", "true")
        assert refused.returncode == 1
        assert refused.stderr.startswith("pw-cluster: error: ")
        assert "'ann'" in refused.stderr
        process.communicate("\n", timeout=60)
        assert process.returncode == 0
    cluster.wait_until_free()


STEPPING = (
    HOLDING
    + """
print(os.getpid(), flush=True)
try:
    while True:
        x = step(x)
        x.block_until_ready()
except jax.errors.JaxRuntimeError as error:
    print(error)
"""
)


@pytest.mark.parametrize("way", ["the program is killed", "the front is killed", "the service ends it"])
def test_what_a_program_held_is_freed_however_it_ends(cluster: Tool, way: str) -> None:
    with cluster.ready("ann", STEPPING) as process:
        assert process.stdout is not None
        number = int(process.stdout.readline())
        if way == "the program is killed":
            os.kill(number, signal.SIGKILL)
            assert process.wait(60) == 128 + signal.SIGKILL
        elif way == "the front is killed":
            process.kill()
        else:
            assert cluster("end", "lab", "ann").returncode == 0
            out, err = process.communicate(timeout=60)
            assert (out.partition(":")[0], process.returncode) == ("UNAVAILABLE", 0), err[-2000:]
        cluster.wait_until_free()
    done = cluster("run", "lab", "--", sys.executable, "-c", PROGRAM)
    assert done.stdout.splitlines()[1:] == ["[84. 85. 86. 87. 88. 89. 90. 91.]"], done.stderr[-2000:]


def test_a_program_that_stops_in_a_put_stops_no_other(cluster: Tool) -> None:
    program = HOLDING + "while True: jax.device_put(jnp.ones(1 << 22), over)"
    with cluster.ready("ann", program) as process:
        for part in range(3):
            time.sleep(0.2 + 0.05 * part)
            os.killpg(process.pid, signal.SIGSTOP)
            done = cluster("run", "lab", "--client", "bob", "--", sys.executable, "-c", PROGRAM)
            assert done.stdout.splitlines()[1:] == ["[84. 85. 86. 87. 88. 89. 90. 91.]"], done.stderr[-2000:]
            os.killpg(process.pid, signal.SIGCONT)
    cluster.wait_until_free()


COUNTING = """
import jax, jax.numpy as jnp

over = jax.sharding.NamedSharding(jax.sharding.Mesh(jax.devices()[:4], ("x",)), jax.P("x"))
x = jax.device_put(jnp.arange(16, dtype=jnp.int32), over)
step = jax.jit(lambda x: x * FACTOR + x.sum(), donate_argnums=0)
print("ready", flush=True)
for number in range(200):
    # Another program each time.
    x = step(x) if number % 8 else x - number
print(x.tolist())
"""

COUNTING_WITH_PROGRAMS = """
import jax, jax.numpy as jnp
import pathways as pw

devices = pw.make_virtual_device_set()
slices = [devices.add_slice(shape=(2,), axis_names=("x",), island=f"island{n}") for n in (0, 1)]
step = pw.jit(lambda x: x * FACTOR + x.sum(), devices=slices[0])
less = pw.jit(lambda x, y: x - y, devices=slices[1])
forward = pw.program(lambda x: step(x), donate_argnums=0)
back = pw.program(lambda x, y: less(x, y))
other = jax.jit(lambda x: x * FACTOR + x.sum())
x = jnp.arange(16, dtype=jnp.int32)
print("ready", flush=True)
for number in range(200):
    x = (other if number % 3 else forward)(x) if number % 8 else back(x, jnp.int32(number))
print(x.tolist())
"""

ATTACHED = """
import jax.numpy as jnp
import pathways as pw

pw.connect("lab", client="eve")
devices = pw.make_virtual_device_set()
step = pw.jit(lambda x: x * FACTOR + x.sum(), devices=devices.add_slice(shape=(2,), axis_names=("x",)))
less = pw.jit(lambda x, y: x - y, devices=devices.add_slice(shape=(2,), axis_names=("x",)))
forward = pw.program(lambda x: step(x))
back = pw.program(lambda x, y: less(x, y))
x = forward(jnp.arange(16, dtype=jnp.int32)) * 0 + jnp.arange(16, dtype=jnp.int32)
print("ready", flush=True)
for number in range(200):
    x = forward(x) if number % 8 else back(x, jnp.int32(number))
print(x.tolist())
"""


def counted(factor: int) -> list[int]:
    """Returns what `COUNTING` prints, by NumPy."""
    x = np.arange(16, dtype=np.int32)
    for number in range(200):
        x = x * np.int32(factor) + x.sum(dtype=np.int32) if number % 8 else x - np.int32(number)
    return x.tolist()


@pytest.mark.parametrize("program", [COUNTING, COUNTING_WITH_PROGRAMS], ids=["jax", "programs"])
def test_programs_at_once_have_exact_values(cluster: Tool, program: str) -> None:
    """Two programs that `pw-cluster run` starts, and one that is a client itself."""
    with contextlib.ExitStack() as stack:
        processes = {
            factor: stack.enter_context(cluster.ready(f"client{factor}", f"FACTOR = {factor}" + program))
            for factor in (2, 3)
        }
        processes[5] = stack.enter_context(cluster.python("-c", "FACTOR = 5" + ATTACHED))
        for factor, process in processes.items():
            out, err = process.communicate(timeout=120)
            assert out.splitlines()[-1:] == [str(counted(factor))], err[-2000:]
    cluster.wait_until_free()


PLACED = """
import pathways as pw
from pathways.runtime.local.devices import process_cluster

pw.connect("lab")
slice = pw.make_virtual_device_set().add_slice(2, "x")
print(process_cluster.bind([slice], "f")[slice].island)
"""


def test_others_get_the_devices_that_no_program_has(cluster: Tool) -> None:
    def island() -> str:
        with cluster.python("-c", PLACED) as process:
            return process.communicate(timeout=60)[0].strip()

    assert island() == "island0"
    with cluster.ready("ann", HOLDING + "input()", "--islands", "island0"):
        assert island() == "island1"


def test_a_lost_service_is_unavailable(tmp_path: Path) -> None:
    program = """
import jax

step = jax.jit(lambda x: x + 1)
x = step(jax.device_put(1.0, jax.devices()[0]))
print("ready", flush=True)
codes = set()
for work in (lambda: step(x), lambda: x * 3, lambda: jax.device_put(1.0, jax.devices()[0])):
    try:
        while True:
            work().block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        codes.add(str(error).partition(":")[0])
print(codes)
"""
    with up(tmp_path, "[[islands]]") as cluster, cluster.ready("ann", program) as process:
        os.kill(json.loads(cluster("status", "lab", "--json").stdout)["pid"], signal.SIGKILL)
        out, err = process.communicate(timeout=60)
        assert out == "{'UNAVAILABLE'}\n", err[-2000:]


QUOTA = """
import jax, jax.numpy as jnp, numpy as np

x = jax.device_put(np.arange(1 << 18, dtype=np.float32), jax.devices()[0])
step = jax.jit(lambda x, n: x + n)
kept = [step(x, n) for n in range(2)]
jax.block_until_ready(kept)
over = [step(x, 2), step(x, 3)]
try:
    jax.block_until_ready(over)
except jax.errors.JaxRuntimeError as error:
    print(str(error).splitlines()[0])
del over, kept[1]
print(np.array_equal(kept[0], np.arange(1 << 18)), np.array_equal(step(x, 5), np.arange(5, (1 << 18) + 5)))
"""


def test_a_program_above_its_quota_gets_a_status_and_goes_on(tmp_path: Path) -> None:
    text = """
        [[islands]]
        device_memory = "16 MiB"

        [clients.ann]
        memory = "3.5 MiB"
    """
    with up(tmp_path, text) as cluster:
        done = cluster("run", "lab", "--client", "ann", "--", sys.executable, "-c", QUOTA)
        assert done.returncode == 0, done.stderr[-3000:]
        status, values = done.stdout.splitlines()
        assert status.startswith("RESOURCE_EXHAUSTED: ")
        assert "exceeds the quota of client 'ann' on a device of island0" in status
        assert values == "True True"
        accounts = json.loads(cluster("accounts", "lab", "--json").stdout)
        (steps,) = [each for each in accounts if each["program"] == "jit__lambda"]
        assert (steps["client"], steps["use"]["failures"] >= 1, steps["held_bytes"]) == ("ann", True, 0)
        # The second step above the quota may run after a free.
        assert steps["use"]["result_bytes"] in (3 << 20, 4 << 20)


ON_DRAINED = """
    import sys
    import time
    import jax
    import numpy as np

    double = jax.jit(lambda x: 2 * x)
    first, last = jax.devices()[0], jax.devices()[-1]
    there, here = (double(jax.device_put(np.arange(4.0), device)) for device in (first, last))
    jax.block_until_ready((there, here))
    print("ready", flush=True)
    sys.stdin.readline()
    # The server looks for losses ten times a second.
    time.sleep(0.5)
    for use in (lambda: there, lambda: double(jax.device_put(np.arange(4.0), first))):
        try:
            print(np.asarray(use()))
        except Exception as error:
            print(str(error).partition("\\n")[0])
    print(*np.asarray(double(here)))
"""


def test_pw_cluster_run_loses_drained_islands_with_notice(cluster: Tool) -> None:
    """Arrays there are lost when the time is over, and new ones are refused at once."""
    with cluster.ready("px", textwrap.dedent(ON_DRAINED)) as process:
        drained = cluster("drain", "lab", "island0", "--grace", "1")
        assert (drained.returncode, drained.stdout) == (1, "")
        (*_, error) = drained.stderr.splitlines()
        assert error.startswith("pw-cluster: error: island0 has left after 1 s, and lost all of client 'px'")
        out, err = process.communicate("\n", timeout=60)
        assert out.splitlines() == [
            "DATA_LOSS: island0 was lost: host 0 (island0) has left: drained",
            "UNAVAILABLE: island0 was lost: host 0 (island0) has left: drained",
            "0.0 4.0 8.0 12.0",
        ], err[-2000:]
    # Without --islands, a program gets the devices of the others.
    with cluster.ready("px", "import jax; print('ready'); print(len(jax.devices()))") as process:
        assert process.communicate(timeout=60)[0] == "2\n"
    refused = cluster("run", "lab", "--islands", "island0", "--", sys.executable, "-c", "")
    assert (
        refused.stderr
        == "pw-cluster: error: --islands: island0 is drained; pw-cluster undrain has it return\n"
    )
    again = cluster("drain", "lab", "island0")
    assert again.stderr.endswith("island0 is drained: only a running island can be drained\n")
    assert cluster("undrain", "lab", "island0").returncode == 0
    assert cluster("undrain", "lab", "island0").stderr.endswith(
        "island0 is running: only a drained island returns\n"
    )
    with cluster.ready("px", "import jax; print('ready'); print(len(jax.devices()))") as process:
        assert process.communicate(timeout=60)[0] == "6\n"

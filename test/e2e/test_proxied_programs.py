"""Programs of Pathways in a process behind `pw-proxy`: their arrays are those of plain JAX there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import proxied_programs
import proxy_programs
import pytest
import served_places

import pathways.proxy
from pathways.proxy import ProxyServer
from pathways.runtime.clusters.connect import start_session
from pathways.runtime.hosts.launch.launcher_choice import settings_of
from pathways.runtime.hosts.launch.settings import Island
from pathways.runtime.local.proxied_load import MAX_AHEAD
from pathways.runtime.proxy.hosted.hosts_backend import HostsBackend

pytestmark = pytest.mark.process

STAGE = """if True:
    import jax, jax.numpy as jnp, numpy as np
    import pathways as pw
    stage = pw.make_virtual_device_set().add_slice(shape=(2,), axis_names=("x",))
    def lowered(function, *arguments):
        return pw.program(pw.jit(function, devices=stage)).lower(*arguments)
    def error_of(function):
        try:
            return f"no error: {function()}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
"""
"""Start of a program of a client."""


@pytest.fixture(scope="module", params=served_places.PLACES)
def where(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def server(where: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyServer]:
    with served_places.serve(where, tmp_path_factory.mktemp("proxy")) as server:
        yield server


@pytest.fixture(scope="module")
def proxied(server: ProxyServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns the results of all programs, from one process that uses the server."""
    folder = tmp_path_factory.mktemp("proxied")
    return proxy_programs.run_proxied(server, proxied_programs.__file__, folder)


def lines_of(server: ProxyServer, program: str) -> list[str]:
    """Returns what a program that uses the server writes."""
    environment = os.environ | server.environment
    command = [sys.executable, "-c", STAGE + program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", proxied_programs.PROGRAMS)
def test_equals_the_program_in_one_process(name: str, where: str, proxied: dict[str, Any]) -> None:
    # Between hosts, XLA adds in another order than within a process.
    tolerance = 1e-6 if where == "hosts" else 0.0
    proxy_programs.assert_equal(proxied[name], proxied_programs.PROGRAMS[name], tolerance)


def test_slices_of_the_server_are_islands(server: ProxyServer, where: str) -> None:
    program = """
    print(pw.cluster())
    for island in pw.cluster().islands:
        print(island.state, island.memory, island.round_trip is not None)
    other = pw.make_virtual_device_set().add_slice(shape=(4,), axis_names=("x",), island="island1")
    place = pw.jit(jnp.sin, devices=other)
    print(sorted({device.slice_index for device in pw.program(place)(np.ones(4, "f")).devices()}))
    """
    is_hosts = where == "hosts"
    hosts = ("hosts 0 to 1", "hosts 2 to 3") if is_hosts else ("host 0", "host 0")
    assert lines_of(server, program) == [
        f"<pathways.Cluster of 8 cpu devices (island0: 4 on {hosts[0]}, island1: 4 on {hosts[1]})>",
        *[f"running None {is_hosts}"] * 2,
        "[1]",
    ]


def test_too_few_devices_name_the_flags_of_the_server(server: ProxyServer) -> None:
    program = """
    large = pw.make_virtual_device_set().add_slice(shape=(16,), axis_names=("x",))
    print(error_of(lambda: pw.program(pw.jit(jnp.sin, devices=large))(np.ones(16, "f"))))
    """
    (first, remedy) = lines_of(server, program)
    assert "not enough devices: it needs 16" in first
    assert remedy == (
        "  for more devices start pw-proxy with more: --cpu-devices, --hosts and --devices-per-host"
    )


def test_memory_and_costs_are_those_of_the_server(server: ProxyServer) -> None:
    program = """
    compiled = lowered(lambda x: x * 3, np.ones((8, 8), "f")).compile()
    (memory,) = compiled.memory_analysis().values()
    print(memory.devices, memory.argument_size_in_bytes, memory.output_size_in_bytes)
    print(compiled.cost_analysis()["flops"])
    print(compiled.as_text("device").count("ENTRY"))
    """
    assert lines_of(server, program) == ["2 512 512", "64.0", "1"]


def test_what_a_server_has_not_is_one_sentence(server: ProxyServer) -> None:
    program = """
    x = np.ones(4, "f")
    def printing(x):
        jax.debug.callback(lambda x: None, x)
        return x
    print(error_of(lambda: lowered(printing, x).compile()))
    compiled = lowered(jnp.sin, x).compile()
    on_host = pw.on_hosts("operator:neg", devices=stage)
    print(error_of(lambda: on_host(x)))
    source = pw.on_hosts("builtins:range")
    print(error_of(lambda: pw.prefetch(source, compiled, argument="x", rows=4)))
    print(error_of(lambda: pw.resilient(lambda s, b: (s, b), x, [x], feeds=(compiled, "x"))))
    print(compiled(0 * x))
    """
    callback, *workers, goes_on = lines_of(server, program)
    remedy = "run it without pw-proxy, or with pathways.connect(hosts=...)"
    assert "calls back into Python" in callback
    assert "jax.debug.callback" in callback
    subjects = (
        "pw.on_hosts: operator:neg runs",
        "pw.prefetch: builtins:range runs",
        "pw.resilient: the state",
    )
    for line, subject in zip(workers, subjects, strict=True):
        assert line.startswith(f"RuntimeError: {subject}")
        assert "in workers, which a program has not behind pw-proxy" in line
    assert all(line.endswith(remedy) for line in (callback, *workers))
    assert goes_on == "[0. 0. 0. 0.]"


def test_an_error_of_a_computation_is_that_of_its_results(server: ProxyServer) -> None:
    program = """
    jax.config.update("jax_enable_x64", True)
    large = lowered(lambda x: jnp.zeros((1 << 20, 1 << 15), "complex128").at[0].set(x), 1.0)
    print(error_of(large.compile)[:60])
    small = lowered(jnp.sin, np.ones(4)).compile()
    print(small(np.zeros(4)).sum())
    """
    refused, further = lines_of(server, program)
    assert "no error" not in refused
    assert further == "0.0"


LOOP = """
    devices = pw.make_virtual_device_set()
    first, second = (
        pw.jit(lambda x: x + 1, devices=devices.add_slice(shape=(2,), axis_names=("x",))) for _ in range(2)
    )
    body = lambda s: (s[0] + 1, second(first(s[1])))
    loop = pw.program(
        lambda x, end: jax.lax.while_loop(lambda s: s[0] < end, body, (0, x)), chunk=2
    )
    zeros = jax.device_put(np.zeros(2, "f"), jax.devices()[0])
    print(*loop(zeros, 3), flush=True)
"""
"""Loop over two slices whose end depends on an argument."""

ENDLESS = """
    n, x = loop(zeros, 2**31 - 1)
    print("called", flush=True)
    try:
        x.block_until_ready()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_an_endless_loop_ends_with_its_client_and_does_not_stop_others(
    server: ProxyServer, stop: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STAGE + LOOP + ENDLESS],
        env=os.environ | server.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "3 [6. 6.]\n"
        assert client.stdout.readline() == "called\n", "the call returns before the loop ends"
        (looping,) = server.sessions
        assert lines_of(server, LOOP + "    print(*loop(zeros, 50))") == ["3 [6. 6.]", "50 [100. 100.]"]
        assert looping in server.sessions
        client.send_signal(stop)
        client.wait(timeout=30)
        deadline = time.monotonic() + 2
        while looping in server.sessions:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert client.stdout.read() == ("interrupted\n" if stop == signal.SIGINT else "")


def test_a_loop_has_costs_memory_and_one_plan(server: ProxyServer) -> None:
    program = """
    compiled = loop.lower(zeros, 3).compile()
    print(compiled.cost_analysis()["flops"] > 0, len(compiled.memory_analysis()), bool(compiled.plan.steps))
    donating = pw.program(lambda x, end: loop(x, end)[1], donate_argnums=0, chunk=2)
    x, kept = zeros + 0, zeros + 1
    for _ in range(3):
        given, x = x, donating(x, 3)
    print(given.is_deleted(), x, kept)
    print(error_of(lambda: donating(given, 3)).partition(":")[0])
    """
    *_, costs, donated, deleted = lines_of(server, LOOP + program)
    assert costs == "True 2 True"
    assert donated == "True [18. 18.] [1. 1.]"
    assert "no error" not in deleted


VALUE_OF = """
    import time
    def value_of(result):
        try:
            return str(result + 0)
        except jax.errors.JaxRuntimeError as error:
            return str(error).partition(":")[0]
"""

STEP_OF_ISLANDS = """
    devices = pw.make_virtual_device_set()
    here, there = (devices.add_slice(shape=(2,), axis_names=("x",), island=f"island{n}") for n in (0, 1))
    one_more = pw.jit(lambda x: x + 1, devices=here)
    twice = pw.jit(lambda x: x * 2, devices=here)
    repeated = pw.jit(lambda n, x: jax.lax.fori_loop(0, n, lambda _, x: jnp.sin(x), x), devices=there)

    def step(n, x):
        there = repeated(n, x)
        return one_more(x), there, twice(there)

    step = pw.program(step)
    x = np.zeros(2, "f")
    kept = step(1, x)[0]
    results = step(2**31 - 1, x)
    print("running", flush=True)
    input()
    print([*map(value_of, results)])
    while value_of(step(1, kept)[1]) == "DATA_LOSS":
        time.sleep(0.1)
    print([*map(value_of, step(1, kept))])
"""

LOOP_OF_ISLANDS = """
    kept = lowered(lambda x: x + 1, np.zeros(2, "f")).compile()(np.zeros(2, "f"))
    results = loop(zeros, 2**31 - 1)
    print("running", flush=True)
    input()
    print([*map(value_of, [kept, *results])])
    while value_of(loop(zeros, 3)[1]) == "DATA_LOSS":
        time.sleep(0.1)
    print([*map(value_of, [kept, *loop(zeros, 3)])])
"""


@pytest.mark.hosts
@pytest.mark.parametrize(
    ("program", "lost", "after"),
    [
        (
            STEP_OF_ISLANDS,
            "['[1. 1.]', 'DATA_LOSS', 'DATA_LOSS']",
            "['[2. 2.]', '[0.84147096 0.84147096]', '[1.6829419 1.6829419]']",
        ),
        (LOOP + LOOP_OF_ISLANDS, "['[1. 1.]', 'DATA_LOSS', 'DATA_LOSS']", "['[1. 1.]', '3', '[6. 6.]']"),
    ],
    ids=["step", "loop"],
)
def test_a_lost_island_is_data_loss_in_its_results_alone(
    program: str, lost: str, after: str, tmp_path: Path
) -> None:
    backend = HostsBackend(start_session(settings_of(None, islands=[Island(1, 2)] * 2)))
    pipe = subprocess.PIPE
    with (
        pathways.proxy.serve(tmp_path / "socket", backend=backend) as server,
        subprocess.Popen(
            [sys.executable, "-c", STAGE + VALUE_OF + program],
            env=os.environ | server.environment,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
        ) as client,
    ):
        assert client.stdout is not None
        lines = iter(client.stdout.readline, "")
        assert "running\n" in lines, client.communicate()[1][-3000:]
        time.sleep(0.5)
        os.kill(backend.engine.session.hosts[1].process.pid, signal.SIGKILL)
        out, err = client.communicate("\n", timeout=120)
    assert out.splitlines() == [lost, after], err[-2000:]


AHEAD = """
    import os, signal, sys, threading
    server = int(sys.argv[1])
    compiled = lowered(lambda x: (x + 1, x.sum()), np.zeros(4, "f")).compile()
    x, _ = compiled(np.zeros(4, "f"))
    os.kill(server, signal.SIGSTOP)
    calls = []
    def call():
        global x
        for _ in range(300):
            x, total = compiled(x)
            calls.append(total)
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(timeout=2)
    print(len(calls))
    os.kill(server, signal.SIGCONT)
    thread.join()
    print(x, [float(total) for total in calls] == [4.0 * n for n in range(1, 301)])
"""


def test_calls_run_ahead_of_a_stopped_server_as_far_as_their_window(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pathways.tools.pw_proxy", "--cpu-devices", "2"]
    command += ["--", "sh", "-c", 'exec "$0" -c "$1" $PPID', sys.executable, STAGE + AHEAD]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [str(MAX_AHEAD - 1), "[301. 301. 301. 301.] True"]


def test_an_argument_on_two_islands_is_copied_again_when_one_returns(tmp_path: Path) -> None:
    """The program sees one array, which is on the island that stays."""
    program = """if True:
    import jax, numpy as np
    import pathways as pw
    devices = pw.make_virtual_device_set()
    stays, leaves = (devices.add_slice((2,), ("x",), island=f"island{n}") for n in (0, 1))
    one_more = pw.jit(lambda x: x + 1, devices=stays)
    twice = pw.jit(lambda x: x * 2, devices=leaves)
    step = pw.program(lambda x: (one_more(x), twice(x)))
    x = step(np.zeros(2, "f"))[0]
    while True:
        for result in step(x):
            try:
                print(np.asarray(result), flush=True)
            except jax.errors.JaxRuntimeError as error:
                print(str(error).partition(":")[0], flush=True)
        input()
    """
    with (
        pathways.proxy.serve(tmp_path / "socket", jax.devices("cpu")[:4], islands=2) as server,
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=os.environ | server.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as client,
    ):
        assert client.stdin is not None
        assert client.stdout is not None

        def results() -> list[str]:
            return [client.stdout.readline().strip() for _ in range(2)]

        assert results() == ["[2. 2.]", "[2. 2.]"]
        server.lose_island(1)
        print(file=client.stdin, flush=True)
        assert results() == ["DATA_LOSS", "DATA_LOSS"]
        server.return_island(1)
        print(file=client.stdin, flush=True)
        assert results() == ["[2. 2.]", "[2. 2.]"]
        client.kill()

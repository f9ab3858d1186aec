"""Traces and status in a process behind `pw-proxy`, whose server launches the steps of its programs."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
import served_places

import pathways.proxy
from pathways.passes.analysis.measured.trace_file import read_trace
from pathways.proxy import ProxyServer
from pathways.runtime.local import recording

pytestmark = pytest.mark.process

PIPELINE = """if True:
    import logging, os, sys
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import PartitionSpec as P
    import pathways as pw

    path = sys.argv[1]
    devices = pw.make_virtual_device_set()
    stages = [devices.add_slice((4,), ("x",), island=f"island{n}") for n in (0, 1)]
    layers = [
        pw.jit(lambda w, x: jnp.tanh(x @ w), devices=stage, in_shardings=(P(), P("x")), out_shardings=P("x"))
        for stage in stages
    ]

    def loss(weights, batch):
        for layer, w in zip(layers, weights, strict=True):
            batch = layer(w, batch)
        return (batch**2).mean()

    @pw.program(schedule="1f1b")
    def step(weights, batch):
        return pw.accumulate(jax.value_and_grad(loss), 4)(weights, batch)

    weights, batch = [np.eye(8, dtype="f")] * 2, np.ones((16, 8), "f")
    jax.block_until_ready(step(weights, batch))
"""
"""Start of a program of a client: a pipeline on two islands of four devices."""


@pytest.fixture(scope="module", params=served_places.PLACES)
def where(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def server(where: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyServer]:
    with served_places.serve(where, tmp_path_factory.mktemp("proxy")) as server:
        yield server


@contextlib.contextmanager
def started(server: ProxyServer, program: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Starts a client whose program writes a trace to a path."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", PIPELINE + program, str(path)]
    environment = os.environ | server.environment
    with subprocess.Popen(
        command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as client:
        try:
            yield client
        finally:
            client.kill()


def lines_of(server: ProxyServer, program: str, path: Path) -> tuple[list[str], str]:
    """Returns what a client writes to standard output and to standard error."""
    with started(server, program, path) as client:
        out, err = client.communicate(timeout=120)
        assert client.returncode == 0, err[-3000:]
    return out.splitlines(), err


def wait_for_line(client: subprocess.Popen[str], line: str) -> None:
    assert client.stdout is not None
    assert client.stdout.readline() == line + "\n", client.communicate()[1][-3000:]


def send_line(client: subprocess.Popen[str]) -> None:
    assert client.stdin is not None
    client.stdin.write("\n")
    client.stdin.flush()


def test_a_trace_has_each_step_of_the_plan(server: ProxyServer, where: str, tmp_path: Path) -> None:
    program = """
    with pw.trace(path):
        for _ in range(3):
            traced = step(weights, batch)
    step.lower(weights, batch).compile().timeline().save_trace(path + ".planned")
    jax.tree.map(np.testing.assert_array_equal, traced, step(weights, batch))
    """
    lines_of(server, program, tmp_path / "run.json")
    (planned,) = read_trace((tmp_path / "run.json.planned").read_bytes())
    text = (tmp_path / "run.json").read_text()
    timelines = read_trace(text)
    assert [timeline.title for timeline in timelines] == [f"measured, step {n}" for n in range(3)]
    tracks = {
        "one process": {},
        # Both hosts of an island have a track of its slice.
        "hosts": {
            f"{name}/{n}": 2 * island + n for island, name in enumerate(planned.slices) for n in (0, 1)
        },
    }[where]
    for timeline in timelines:
        assert timeline.hosts == tracks
        for track in tracks or planned.slices:
            name = track.partition("/")[0]
            launches = [event for event in timeline.launches if event.slice == track]
            assert [e.label for e in launches] == [e.label for e in planned.launches if e.slice == name]
            assert not any(event.estimated for event in launches)
            arrivals = [event.slice.partition("/")[0] for event in timeline.transfers if event.dst == track]
            assert arrivals == [event.slice for event in planned.transfers if event.dst == name]
        # Clocks of hosts differ by less here, and a busy machine notes ends late.
        assert all(timeline.events[n].end <= e.start + 0.05 for e in timeline.events for n in e.reads)
    bars: dict[int, float] = {}
    for event in sorted((e for e in json.loads(text) if e.get("cat") == "launch"), key=lambda e: e["ts"]):
        # Also for steps that follow each other; times are rounded to nanoseconds.
        assert bars.get(event["pid"], 0) <= event["ts"] + 1e-2
        bars[event["pid"]] = event["ts"] + event["dur"]
    assert len(bars) == len(tracks or planned.slices)


def test_clients_that_trace_at_once_see_their_own_calls(server: ProxyServer, tmp_path: Path) -> None:
    """Both run the same program; one ends its trace first."""
    program = """
    def call(count):
        for _ in range(count):
            jax.block_until_ready(step(weights, batch))
        print("called", flush=True)
        input()
    with pw.trace(path):
        call(0)
        call(2)
        call(len(os.path.basename(path)))
    print("done", flush=True)
    """
    ann, bob = tmp_path / "3.j", tmp_path / "four.j"
    with started(server, program, ann) as first, started(server, program, bob) as second:
        clients = (first, second)
        for client in clients:
            wait_for_line(client, "called")
        for client in clients:
            send_line(client)
        for client in clients:
            wait_for_line(client, "called")
        for client in clients:
            send_line(client)
            wait_for_line(client, "called")
            send_line(client)
            wait_for_line(client, "done")
            assert client.wait(60) == 0
    lengths = [len(read_trace(path.read_bytes())) for path in (ann, bob)]
    assert lengths == [2 + 3, 2 + 6]
    assert recording._current is None


def test_the_status_names_slices_of_the_program_and_hosts_of_the_server(
    server: ProxyServer, where: str, tmp_path: Path
) -> None:
    program = """
    status = pw.status()
    print(status.backend, [(slice.name, slice.devices, slice.program) for slice in status.slices])
    print([(host.host, host.island, host.devices, host.error) for host in status.hosts])
    print(all("step" in host.programs for host in status.hosts))
    print(status)
    """
    (slices, hosts, has_programs, *shown), _ = lines_of(server, program, tmp_path)
    assert slices == "server [('s0', (0, 1, 2, 3), 'step'), ('s1', (4, 5, 6, 7), 'step')]"
    expected = {
        "one process": [(0, "island0 island1", len(jax.devices("cpu")), None)],
        "hosts": [(n, f"island{n // 2}", 2, None) for n in range(4)],
    }[where]
    assert (hosts, has_programs) == (str(expected), "True")
    assert shown[:2] == [
        "devices of a server (pw-proxy): hosts, arrays and steps are those of all its clients",
        "hosts",
    ]


def test_a_client_that_dies_stops_its_trace(server: ProxyServer, tmp_path: Path) -> None:
    program = """
    with pw.trace(path):
        step(weights, batch)
        print("traces", flush=True)
        os._exit(1)
    """
    with started(server, program, tmp_path / "run.json") as client:
        wait_for_line(client, "traces")
        assert client.wait(60) == 1
    deadline = time.monotonic() + 30
    while recording._current is not None:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_lost_server_ends_a_trace_with_a_warning(tmp_path: Path) -> None:
    program = """
    logging.basicConfig()
    with pw.trace(path):
        jax.block_until_ready(step(weights, batch))
        print("traces", flush=True)
        input()
    try:
        pw.status()
    except jax.errors.JaxRuntimeError as error:
        print(str(error).partition(":")[0])
    """
    with (
        pathways.proxy.serve(tmp_path / "proxy" / "socket", jax.devices("cpu"), islands=2) as server,
        started(server, program, tmp_path / "run.json") as client,
    ):
        wait_for_line(client, "traces")
        # Until the client has read the call.
        time.sleep(4)
        server.close()
        out, err = client.communicate("\n", timeout=120)
        assert client.returncode == 0, err[-3000:]
    assert out == "UNAVAILABLE\n"
    assert "the trace lacks the last calls that the server ran: UNAVAILABLE" in err
    assert len(read_trace((tmp_path / "run.json").read_bytes())) == 1


def test_the_trace_of_the_environment_is_of_the_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pathways.tools.pw_proxy", "--cpu-devices", "8", "--islands", "2"]
    done = subprocess.run(
        [*command, "--", sys.executable, "-c", PIPELINE + "    step(weights, batch)", ""],
        env=os.environ | {"PW_TRACE": str(tmp_path / "run.json")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    timelines = read_trace((tmp_path / "run.json").read_bytes())
    assert [timeline.title for timeline in timelines] == ["measured, step 0", "measured, step 1"]
    for timeline in timelines:
        for name in timeline.slices:
            launches = [event for event in timeline.launches if event.slice == name]
            assert all(a.end <= b.start + 1e-9 for a, b in itertools.pairwise(launches))

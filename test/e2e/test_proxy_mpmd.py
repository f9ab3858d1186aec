"""Programs of Shardy's MPMD compiler behind the proxy server: each equals `pw.from_mpmd`."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from typing import Any

import front_end_programs
import jax
import numpy as np
import proxy_mpmd
import pytest
from check import assert_close
from mpmd_programs import PROGRAMS
from stored_mpmd import partitioned

import pathways.proxy
from pathways.compiler.mpmd.from_mpmd import lower_partitioned
from pathways.runtime.clusters.connect import start_session
from pathways.runtime.hosts.launch.launcher_choice import settings_of
from pathways.runtime.hosts.launch.settings import Island
from pathways.runtime.proxy.hosted.hosts_backend import HostsBackend
from pathways.runtime.proxy.loading.backend import Backend
from pathways.runtime.proxy.loading.local_backend import LocalBackend

pytestmark = pytest.mark.process


@pytest.fixture(scope="module", params=["one process", pytest.param("hosts", marks=pytest.mark.hosts)])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Returns the devices of this process, or those of two islands of two hosts."""
    if request.param == "hosts":
        return HostsBackend(start_session(settings_of(None, islands=[Island(2, 2)] * 2)))
    return LocalBackend(jax.devices("cpu"))


@pytest.fixture(scope="module")
def proxied(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns the results of all programs, from one process that uses a server."""
    results = tmp_path_factory.mktemp("proxied") / "results"
    run_proxied(backend, proxy_mpmd.__file__, str(results))
    return pickle.loads(results.read_bytes())


def run_proxied(backend: Backend, *command: str) -> str:
    """Runs a script that uses a server; returns its output."""
    with pathways.proxy.serve(backend=backend) as server:
        done = subprocess.run(
            [sys.executable, *command],
            env=os.environ | server.environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        deadline = time.monotonic() + 30
        while server.sessions:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    return done.stdout


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "with_callbacks"])
def test_equals_from_mpmd(name: str, backend: Backend, proxied: dict[str, Any]) -> None:
    if isinstance(proxied[name], Exception):
        raise proxied[name]
    program = PROGRAMS[name]
    results = lower_partitioned(partitioned(name, "call")).compile()(
        *jax.tree.map(jax.numpy.array, program.args)
    )
    expected = [np.asarray(proxy_mpmd.data(leaf)) for leaf in jax.tree.leaves(results)]
    for got, _ in proxied[name]:
        assert [one.dtype for one in got] == [other.dtype for other in expected]
        if isinstance(backend, HostsBackend):
            # Between hosts, XLA adds in another order than within a process.
            assert_close(got, expected, 2e-6)
        else:
            assert [one.tobytes() for one in got] == [other.tobytes() for other in expected]


def test_donated_arguments_are_deleted(proxied: dict[str, Any]) -> None:
    """The third argument, which JAX does not use, is not one of the program."""
    assert [deleted for _, deleted in proxied["two_stages"]] == [[True, True, False]] * 2
    assert [deleted for _, deleted in proxied["sharded"]] == [[True, True, False]] * 2
    assert [deleted for _, deleted in proxied["gpipe"]] == [[False] * 5] * 2


def test_callbacks_are_refused_by_name(proxied: dict[str, Any]) -> None:
    message = str(proxied["with_callbacks"])
    assert message.startswith(
        "UNIMPLEMENTED: the program calls 'xla_ffi_python_cpu_callback' (a callback is Python of the program"
    )


@pytest.mark.needs("shardy")
def test_programs_of_tests_of_front_end_agree_with_jit() -> None:
    output = run_proxied(LocalBackend(jax.devices("cpu")), front_end_programs.__file__)
    count, _, rest = output.strip().rpartition("\n")[2].partition(" ")
    assert rest == "programs agree"
    assert int(count) >= 52

"""Unmodified JAX programs behind the proxy server: each equals local JAX, bit by bit."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import proxy_programs
import pytest

from pathways.runtime.proxy import descriptors
from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.serving import ProxyServer

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyServer]:
    """A server of the devices of this process."""
    served = ServedDevices(jax.devices("cpu"), descriptors.messages())
    server = ProxyServer(tmp_path_factory.mktemp("proxy") / "socket", served)
    yield server
    server.close()


def client_environment(server: ProxyServer) -> dict[str, str]:
    """The environment of a program that uses the server."""
    return os.environ | {
        "JAX_PLATFORMS": "proxy",
        "JAX_BACKEND_TARGET": server.address,
        "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
    }


@pytest.fixture(scope="module")
def proxied(server: ProxyServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of all programs, from one process that uses the server."""
    results = tmp_path_factory.mktemp("proxied") / "results"
    command = [sys.executable, proxy_programs.__file__, str(results)]
    done = subprocess.run(
        command, env=client_environment(server), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return pickle.loads(results.read_bytes())


@pytest.mark.parametrize("name", proxy_programs.PROGRAMS)
def test_equals_local_jax(name: str, proxied: dict[str, Any]) -> None:
    got = proxied[name]
    if isinstance(got, Exception):
        raise got
    want = proxy_programs.to_host(proxy_programs.PROGRAMS[name]())
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if isinstance(other, np.ndarray):
            assert one.dtype == other.dtype
            assert one.shape == other.shape
            assert one.tobytes() == other.tobytes()
        else:
            assert one == other


def test_nothing_is_left_of_a_session(server: ProxyServer, proxied: dict[str, Any]) -> None:
    assert "one_operation" in proxied
    assert server.sessions == ()

"""Unmodified JAX programs behind the proxy server: each equals local JAX, bit by bit."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import proxy_persistence
import proxy_programs
import pytest

import pathways.proxy
from pathways.proxy import ProxyServer

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyServer]:
    """Starts a server of the devices of this process."""
    with pathways.proxy.serve(tmp_path_factory.mktemp("proxy") / "socket", jax.devices("cpu")) as server:
        yield server


@pytest.fixture(scope="module")
def proxied(server: ProxyServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns the results of all programs, from one process that uses the server."""
    return proxy_programs.run_proxied(server, proxy_programs.__file__, tmp_path_factory.mktemp("proxied"))


@pytest.mark.parametrize("name", proxy_programs.PROGRAMS)
def test_equals_local_jax(name: str, proxied: dict[str, Any]) -> None:
    proxy_programs.assert_equal(proxied[name], proxy_programs.PROGRAMS[name])


def test_nothing_is_left_of_a_session(server: ProxyServer, proxied: dict[str, Any]) -> None:
    assert "one_operation" in proxied
    assert server.sessions == ()


def start_client(server: ProxyServer, program: str) -> subprocess.Popen[str]:
    """Starts a program that uses the server."""
    command = [sys.executable, "-c", program]
    return subprocess.Popen(
        command,
        env=os.environ | server.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_end_of_sessions(server: ProxyServer) -> None:
    """Waits until no session is left."""
    deadline = time.monotonic() + 30
    while server.sessions:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_failed_execution_is_raised_when_it_is_read_and_the_session_goes_on(server: ProxyServer) -> None:
    program = """if True:
        import jax, jax.numpy as jnp
        jax.config.update("jax_enable_x64", True)
        large = jax.jit(lambda x: jnp.zeros((1 << 20, 1 << 15), "complex128").at[0].set(x))
        failed = large(1.0)
        further = failed[0] + 1
        print("called")
        for array in (failed, further):
            try:
                array.block_until_ready()
            except jax.errors.JaxRuntimeError as error:
                print(str(error).partition(":")[0])
        print(jnp.ones(2, "float32") + 1)
        """
    with start_client(server, program) as client:
        out, err = client.communicate(timeout=120)
    assert out == "called\nRESOURCE_EXHAUSTED\nRESOURCE_EXHAUSTED\n[2. 2.]\n", err[-2000:]


def test_a_killed_client_leaves_nothing(server: ProxyServer) -> None:
    program = """if True:
        import jax, jax.numpy as jnp, time
        x = jnp.ones((100, 100))
        step = jax.jit(lambda x: x * 1.5)
        print(step(x)[0, 0], flush=True)
        while True:
            x = step(x)
        """
    with start_client(server, program) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "1.5\n"
        (session,) = server.sessions
        assert session.counts[0] > 0
        client.kill()
    wait_for_end_of_sessions(server)
    assert session.counts == (0, 0, 0, 0)


def test_a_stopped_client_delays_no_other_client(server: ProxyServer) -> None:
    program = """if True:
        import jax, jax.numpy as jnp
        x = jnp.ones(100)
        print("ready", flush=True)
        while True:
            x = x + 1
        """
    with start_client(server, program) as stopped:
        assert stopped.stdout is not None
        assert stopped.stdout.readline() == "ready\n"
        stopped.send_signal(signal.SIGSTOP)
        with start_client(server, "import jax; print(jax.jit(lambda x: x + 1)(1.0))") as other:
            assert other.communicate(timeout=120)[0] == "2.0\n"
        stopped.kill()
    wait_for_end_of_sessions(server)


def test_the_end_of_the_server_is_an_error_of_its_clients() -> None:
    server = pathways.proxy.serve(devices=jax.devices("cpu"))
    program = """if True:
        import jax, jax.numpy as jnp, time
        x = jnp.ones(100)
        print("ready", flush=True)
        input()
        began = time.monotonic()
        try:
            (x + 1).block_until_ready()
        except Exception as error:
            print(str(error).partition(":")[0], time.monotonic() - began < 10)
        """
    with start_client(server, program) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
        server.close()
        out, err = client.communicate("\n", timeout=120)
    assert out == "UNAVAILABLE True\n", err[-2000:]
    assert not server.path.parent.exists()


def test_reshards_requested_by_pathwaysutils(server: ProxyServer) -> None:
    program = """if True:
        import base64, json
        import jax, numpy as np
        from jax.extend.ifrt_programs import ifrt_programs
        from jax.interpreters import pxla
        from jax.sharding import NamedSharding, PartitionSpec as P

        before = NamedSharding(jax.make_mesh((4,), ("x",), devices=jax.devices()[:4]), P("x"))
        after = NamedSharding(jax.make_mesh((2,), ("y",), devices=jax.devices()[6:]), P(None, "y"))
        x = jax.device_put(np.arange(16.0, dtype=np.float32).reshape(4, 4), before)

        def described(sharding):
            hlo = sharding._to_xla_hlo_sharding(2).to_proto().SerializeToString()
            ids = [device.id for device in sharding._addressable_device_assignment]
            return {"devices": {"device_ids": ids}, "xla_hlo_sharding": base64.b64encode(hlo).decode()}

        request = {
            "donateInput": False, "inSharding": [described(before)], "outSharding": [described(after)]
        }
        client = jax.devices()[0].client
        compiled = client.compile_ifrt_program(
            ifrt_programs.make_plugin_program(json.dumps({"reshardRequest": request})),
            ifrt_programs.make_plugin_compile_options(),
        )
        for _ in range(2):
            results = compiled.execute_sharded([x], with_tokens=True)
            handlers = pxla.global_avals_to_results_handler([x.aval], [after], True).handlers
            (y,) = results.consume_with_handlers(handlers)
            results.consume_token().block_until_ready()
            shapes = [shard.data.shape for shard in y.addressable_shards]
            print(np.asarray(y).sum(), y.sharding == after, shapes)
        try:
            client.compile_ifrt_program(
                ifrt_programs.make_plugin_program(json.dumps({"other": {}})),
                ifrt_programs.make_plugin_compile_options(),
            )
        except jax.errors.JaxRuntimeError as error:
            print(error)
        """
    with start_client(server, program) as client:
        out, err = client.communicate(timeout=120)
    line = "120.0 True [(4, 2), (4, 2)]\n"
    assert out == f"{line}{line}UNIMPLEMENTED: plugin programs 'other' are not supported by the server\n", err


def test_orbax_has_the_server_write_and_read_arrays(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    with pathways.proxy.serve(tmp_path / "socket", jax.devices("cpu"), files=[files]) as server:
        run = functools.partial(proxy_persistence.run, server)
        refused = run("save", files / "step", tmp_path / "other")
        assert refused.startswith(f"PERMISSION_DENIED: path '{tmp_path / 'other'}")
        assert run("restore", files / "step") == "True 120.0 8\nTrue\n"
        # Files are those of Orbax, and Orbax's are read.
        here = ocp.ArrayRestoreArgs(sharding=jax.sharding.SingleDeviceSharding(jax.devices("cpu")[3]))
        args = {"weights": {"one": here}, "moment": here, "step": here}
        local = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)).restore(
            files / "step", ocp.args.PyTreeRestore(restore_args=args)
        )
        np.testing.assert_array_equal(local["weights"]["one"], np.arange(64).reshape(8, 8))
        ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).save(files / "local", local)
        assert (files / "local" / "manifest.ocdbt").exists()
        assert run("restore", files / "local") == "True 120.0 8\nTrue\n"

"""Servers and clients of the proxy that are killed, stopped, forked and interrupted, and unknown peers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import pytest
from test_proxy import start_client, wait_for_end_of_sessions

import pathways.proxy
from pathways.proxy import ProxyServer

pytestmark = [pytest.mark.process, pytest.mark.slow]

COMMAND = [sys.executable, "-m", "pathways.tools.pw_proxy"]

STEPS = """if True:
    import sys, jax, jax.numpy as jnp
    step = jax.jit(lambda x: x * 1.5 + 1)
    x = step(jnp.ones((64, 64)))
    x.block_until_ready()
    print("ready", flush=True)
    try:
        while True:
            x = step(x)
            x.block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        print(str(error).partition(":")[0])
"""
"""Script that computes until its server is lost."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyServer]:
    """Starts a server of the devices of this process."""
    with pathways.proxy.serve(tmp_path_factory.mktemp("proxy") / "own" / "jax", jax.devices("cpu")) as server:
        yield server


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Starts the tool in a process of its own, at the socket `own/jax`."""
    command = [*COMMAND, "--listen", f"unix:{tmp_path}/own/jax", "--cpu-devices", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(3):
            assert process.stdout.readline().startswith("export ")
        yield process
        process.kill()


@contextlib.contextmanager
def start_program(tmp_path: Path, program: str) -> Iterator[subprocess.Popen[str]]:
    """Starts a program that uses the server at the socket `own/jax`, and kills it if a test fails."""
    environment = {
        "JAX_PLATFORMS": "proxy",
        "JAX_BACKEND_TARGET": f"grpc://unix:{tmp_path}/own/jax",
        "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
    }
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(condition: Callable[[], bool]) -> None:
    """Waits until a condition holds."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_ends_while_a_client_computes(
    serving: subprocess.Popen[str], tmp_path: Path, number: signal.Signals
) -> None:
    with start_program(tmp_path, STEPS) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
        serving.send_signal(number)
        out, err = client.communicate(timeout=120)
    assert out == "UNAVAILABLE\n", err[-2000:]
    assert client.returncode == 0
    assert serving.wait(timeout=60) == (0 if number == signal.SIGTERM else -number)


def test_a_server_that_is_stopped_goes_on(serving: subprocess.Popen[str], tmp_path: Path) -> None:
    program = """if True:
        import jax, jax.numpy as jnp
        x = jnp.ones(8)
        print("ready", flush=True)
        input()
        print("computes", flush=True)
        for _ in range(20):
            x = x + 1
        print(x[0])
        """
    with start_program(tmp_path, program) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
        serving.send_signal(signal.SIGSTOP)
        client.stdin.write("\n")
        client.stdin.flush()
        assert client.stdout.readline() == "computes\n"
        serving.send_signal(signal.SIGCONT)
        out, err = client.communicate(timeout=120)
    assert out == "21.0\n", err[-2000:]


def test_a_client_that_is_stopped_goes_on(server: ProxyServer) -> None:
    program = """if True:
        import jax, jax.numpy as jnp
        x = jnp.ones(8)
        print("ready", flush=True)
        for _ in range(200):
            x = x + 1
        print(x[0])
        """
    with start_client(server, program) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
        client.send_signal(signal.SIGSTOP)
        assert len(server.sessions) == 1
        client.send_signal(signal.SIGCONT)
        out, err = client.communicate(timeout=120)
    assert out == "201.0\n", err[-2000:]
    wait_for_end_of_sessions(server)


def test_clients_that_are_killed_in_the_middle_of_transfers(server: ProxyServer) -> None:
    program = """if True:
        import jax, numpy as np
        print("ready", flush=True)
        value = np.ones(4 << 20, np.float32)
        while True:
            np.asarray(jax.device_put(value) + 1)
        """
    for _ in range(2):
        with start_client(server, program) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n"
            wait_until(lambda: any(session.counts[0] for session in server.sessions))
            (session,) = server.sessions
            client.kill()
        wait_for_end_of_sessions(server)
        assert session.counts == (0, 0, 0, 0)


COMPILES = """if True:
    import jax, jax.numpy as jnp
    def long(x):
        for number in range(3000):
            x = jnp.sin(x * number) + x[::-1]
        return x
    print("compiles", flush=True)
    jax.jit(long)(jnp.ones(64))
    print("compiled", flush=True)
    """
"""Script with a program that XLA compiles for minutes."""


def compilers_of(parent: int) -> list[int]:
    """Returns the processes in which a server compiles."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_child = f"\nPPid:\t{parent}\n" in (folder / "status").read_text()
            if is_child and "runtime.proxy.loading.compile_process" in (folder / "cmdline").read_text():
                found.append(int(folder.name))
    return found


def test_a_client_that_is_killed_while_its_program_compiles(
    serving: subprocess.Popen[str], tmp_path: Path
) -> None:
    """No process continues to compile, and the server serves the next client."""
    with start_program(tmp_path, COMPILES) as client:
        wait_until(lambda: bool(compilers_of(serving.pid)))
        client.kill()
        wait_until(lambda: not compilers_of(serving.pid))
        assert client.communicate()[0] == "compiles\n"
    with start_program(tmp_path, "import jax; print(jax.jit(lambda x: x + 1)(1.0))") as other:
        assert other.communicate(timeout=120)[0] == "2.0\n"


def test_a_program_that_is_killed_while_it_compiles_ends_the_tool() -> None:
    with subprocess.Popen(
        [*COMMAND, "--", sys.executable, "-c", f"import os\nprint(os.getpid())\n{COMPILES}"],
        stdout=subprocess.PIPE,
        text=True,
    ) as tool:
        assert tool.stdout is not None
        program = int(tool.stdout.readline())
        wait_until(lambda: bool(compilers_of(tool.pid)))
        (compiler,) = compilers_of(tool.pid)
        os.kill(program, signal.SIGKILL)
        assert tool.wait(timeout=60) == 128 + signal.SIGKILL
    wait_until(lambda: not Path(f"/proc/{compiler}").exists())


def test_threads_of_one_client(server: ProxyServer) -> None:
    program = """if True:
        import threading, jax, jax.numpy as jnp, numpy as np
        results = {}
        def work(number):
            step = jax.jit(lambda x: x * number + 1)
            x = jax.device_put(np.float32(number), jax.devices()[number])
            for _ in range(50):
                x = step(x) % 1000
            results[number] = float(x)
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        for number in range(4):
            x = np.float32(number)
            for _ in range(50):
                x = (x * np.float32(number) + np.float32(1)) % np.float32(1000)
            assert results[number] == x, (number, results[number], x)
        print("equal")
        """
    with start_client(server, program) as client:
        out, err = client.communicate(timeout=240)
    assert out == "equal\n", err[-2000:]


def test_clients_at_once(server: ProxyServer) -> None:
    program = """if True:
        import sys, jax, jax.numpy as jnp
        x = jnp.float32(sys.argv[-1])
        print("ready", flush=True)
        input()
        for _ in range(50):
            x = jax.jit(lambda x: x + 1)(x)
        print(x)
        """
    clients = [start_client(server, program.replace("sys.argv[-1]", str(n))) for n in range(3)]
    for client in clients:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
    wait_until(lambda: len(server.sessions) == 3)
    for number, client in enumerate(clients):
        with client:
            assert client.communicate("\n", timeout=240)[0] == f"{number + 50}.0\n"
    wait_for_end_of_sessions(server)


def test_a_client_that_forks(server: ProxyServer) -> None:
    """The child has no connection of its own; its exit does not end the session of its parent."""
    program = """if True:
        import os, subprocess, sys, jax, jax.numpy as jnp
        x = jnp.ones(4)
        child = os.fork()
        if child == 0:
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(subprocess.run([sys.executable, "-c", "print('hello')"], check=True).returncode, flush=True)
        print((x + 1)[0])
        """
    with start_client(server, program) as client:
        out, err = client.communicate(timeout=120)
    assert sorted(out.split()) == ["0", "2.0", "7", "hello"], err[-2000:]


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00" + bytes(512), bytes(100_000), b""],
    ids=["http", "tls", "zeros", "nothing"],
)
def test_an_unknown_peer_delays_no_client(server: ProxyServer, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(server.path))
        stranger.sendall(data)
        with start_client(server, "import jax; print(jax.jit(lambda x: x + 1)(1.0))") as client:
            assert client.communicate(timeout=120)[0] == "2.0\n"
        if data:
            # The server closes the connection: the bytes it sends before are the beginning of HTTP/2.
            stranger.settimeout(120)
            while _receive(stranger):
                pass


def _receive(stranger: socket.socket) -> bytes:
    try:
        return stranger.recv(1 << 16)
    except ConnectionResetError:
        return b""


def test_ctrl_c_is_for_the_program() -> None:
    """A terminal sends it to the tool and its program; the tool exits with the code of the program."""
    program = """if True:
        import sys, time, jax
        try:
            print(jax.jit(lambda x: x + 1)(1.0), flush=True)
            while True:
                time.sleep(1)
        except KeyboardInterrupt:
            print(jax.jit(lambda x: x + 2)(1.0), flush=True)
            sys.exit(5)
        """
    tool = subprocess.Popen(
        [*COMMAND, "--", sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with tool:
        assert tool.stdout is not None
        assert tool.stdout.readline() == "2.0\n"
        os.killpg(tool.pid, signal.SIGINT)
        assert tool.stdout.readline() == "3.0\n"
        assert tool.wait(timeout=60) == 5


def test_sigterm_of_the_tool_is_for_the_program() -> None:
    program = """if True:
        import jax, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(6))
        print(jax.jit(lambda x: x + 1)(1.0), flush=True)
        while True:
            time.sleep(1)
        """
    command = [*COMMAND, "--", sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tool:
        assert tool.stdout is not None
        assert tool.stdout.readline() == "2.0\n"
        tool.send_signal(signal.SIGTERM)
        assert tool.wait(timeout=60) == 6

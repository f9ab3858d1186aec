"""`pw-proxy` around programs that use JAX."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import pathways.proxy
from pathways.tools import pw_proxy

pytestmark = pytest.mark.process

COMMAND = [sys.executable, "-m", "pathways.tools.pw_proxy"]

PROGRAM = """
import sys, jax
print([device.id for device in jax.devices()], [getattr(d, "slice_index", None) for d in jax.devices()])
print(jax.jit(lambda x: x + 1)(1.0))
sys.exit(int(sys.argv[1]))
"""


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the tool until it exits."""
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=120, env=os.environ | environment
    )


@pytest.mark.feature("unmodified", "values")
def test_runs_a_program_and_exits_with_its_code() -> None:
    done = run("--cpu-devices", "4", "--islands", "2", "--", sys.executable, "-c", PROGRAM, "3")
    assert done.stdout == "[0, 1, 2, 3] [0, 0, 1, 1]\n2.0\n"
    assert done.returncode == 3


def test_a_program_of_one_slice_beside_its_own_cpu() -> None:
    program = "import jax; print(jax.devices()[0].slice_index if 0 else jax.local_devices(backend='cpu'))"
    done = run("--with-cpu", "--", sys.executable, "-c", program, XLA_FLAGS="")
    assert "CpuDevice(id=0)" in done.stdout, done.stderr


REFILLED = """if True:
    import jax, jax.numpy as jnp, numpy as np
    double = jax.jit(lambda x: x + x)
    rows = jax.NamedSharding(jax.make_mesh((2,), ("x",)), jax.P("x"))
    compiled = {}

    def ahead_of_time(x):
        if x.shape not in compiled:
            compiled[x.shape] = double.lower(x).compile()
        return compiled[x.shape](x) / 2

    product, one = jax.jit(lambda x, y: x * y), jnp.ones(())
    ways = {
        "jit": lambda x: double(x) / 2,
        "beside an array of JAX": lambda x: product(one, x),
        "compiled": ahead_of_time,
        "device_put": jax.device_put,
        "array": jnp.array,
        "add": lambda x: jnp.add(x, 0),
    }
    of_rows = {
        "shards": lambda x: jax.device_put(x, rows),
        "callback": lambda x: jax.make_array_from_callback(x.shape, rows, lambda index: x[index]),
        "reversed": lambda x: jax.device_put(x[::-1]),
        "grad": jax.grad(lambda x: (x * x).sum() / 2),
    }
    for use in ways.values():
        use(np.float32(0))  # A scalar, whose calls may be passed on in the same way as those of arrays.
    for shape in ((), (16,), (1 << 19,)):
        buffer = np.empty(shape, np.float32)
        for name, use in (ways | (of_rows if shape else {})).items():
            results = []
            for step in range(10):
                buffer[...] = step
                results.append(use(buffer))
            buffer[...] = -1
            for step, result in enumerate(results):
                if not (np.asarray(result) == step).all():
                    print("wrong:", name, shape, step)
    print("ended")
"""
"""Program that fills a buffer again after each call that reads it, in small and large arrays."""


@pytest.mark.slow
def test_numpy_arrays_have_the_values_of_the_call(tmp_path: Path) -> None:
    """The program has its own path of modules."""
    (tmp_path / "sitecustomize.py").write_text("name = 'of the program'")
    program = f"import sitecustomize; print(sitecustomize.name)\n{REFILLED}"
    done = run("--cpu-devices", "2", "--", sys.executable, "-c", program, PYTHONPATH=str(tmp_path))
    assert done.stdout == "of the program\nended\n", done.stderr


@pytest.mark.slow
def test_a_program_of_another_server_asks_for_the_values_of_the_call() -> None:
    call = "import pathways.proxy; pathways.proxy.copy_numpy_at_call(); pathways.proxy.copy_numpy_at_call()"
    with pathways.proxy.serve() as server:
        done = subprocess.run(
            [sys.executable, "-c", f"{call}\n{REFILLED}"],
            capture_output=True,
            text=True,
            timeout=120,
            env=os.environ | server.environment,
        )
    assert done.stdout == "ended\n", done.stderr


@pytest.mark.slow
def test_arrays_put_faster_than_they_travel_do_not_fill_the_memory_of_the_program() -> None:
    program = """if True:
        import resource
        import jax, numpy as np
        first, zeros = jax.jit(lambda x: x[0]), np.zeros(32 << 20, np.int8)
        int(first(zeros))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        last = [first(jax.device_put(zeros)) for _ in range(16)][-1]
        # Some arrays are on a CPU of the program, which keeps their memory.
        local = [jax.device_put(np.full(1 << 20, i, np.int8), jax.devices("cpu")[0]) for i in range(70)]
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(int(last), int(local[-1][0]), grown >> 10 < 70 + 3 * 32)
    """
    done = run("--cpu-devices", "1", "--with-cpu", "--", sys.executable, "-c", program)
    assert done.stdout == "0 69 True\n", done.stderr


def test_a_program_that_ignores_the_path_is_reported() -> None:
    done = run("--", sys.executable, "-E", "-c", "import jax; jax.devices()")
    assert "pw-proxy: the program ignored PYTHONPATH, as Python does with -I or -E: NumPy" in done.stderr


def test_a_program_that_a_signal_ends() -> None:
    done = run("--", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")
    assert done.returncode == 128 + 9


def test_the_end_of_a_program_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client in JAX logs a stack trace when it disconnects."""
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    program = "import os, jax; print(jax.devices(), os.environ['TF_CPP_MIN_LOG_LEVEL'])"
    done = run("--", sys.executable, "-c", program)
    assert (done.stdout, done.stderr) == ("[CpuDevice(id=0)] 2\n", "")
    # The level of the user is kept.
    done = run("--", sys.executable, "-c", program, TF_CPP_MIN_LOG_LEVEL="0")
    assert done.stdout == "[CpuDevice(id=0)] 0\n"
    assert "Stack trace" in done.stderr


def test_serves_until_sigterm(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    command = [*COMMAND, "--listen", f"unix:{folder}/jax", "--cpu-devices", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        lines = [server.stdout.readline() for _ in range(3)]
        assert lines == [
            "export JAX_PLATFORMS=proxy\n",
            f"export JAX_BACKEND_TARGET=grpc://unix:{folder}/jax\n",
            "export IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS=true\n",
        ]
        assert folder.stat().st_mode & 0o777 == 0o700
        client = subprocess.run(
            ["bash", "-c", f"{''.join(lines)} {sys.executable} -c 'import jax; print(len(jax.devices()))'"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert client.stdout == "2\n"
        second = run("--listen", f"unix:{folder}/jax")
        assert second.returncode == 1
        assert second.stderr == f"pw-proxy: error: socket {folder}/jax: another server uses it\n"
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) == 0
    assert not (folder / "jax").exists()


def test_signals_lose_and_return_islands(tmp_path: Path) -> None:
    program = """if True:
        import os, signal, time
        import jax

        def is_connected(device):
            try:
                return float(jax.device_put(1.0, device)) == 1
            except jax.errors.JaxRuntimeError as error:
                assert "DATA_LOSS: island" in str(error), error
                return False

        for number in (signal.SIGUSR1,) * 2 + (signal.SIGUSR2,) * 2:
            before = now = [is_connected(device) for device in jax.devices()]
            os.kill(os.getppid(), number)
            while now == before:
                now = [is_connected(device) for device in jax.devices()]
            print(now)
        """
    done = run("--cpu-devices", "2", "--islands", "2", "--", sys.executable, "-c", program)
    assert done.stdout == "[True, False]\n[False, False]\n[True, False]\n[True, True]\n", done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("pw-proxy")] == [
        "pw-proxy: island1 lost",
        "pw-proxy: island0 lost",
        "pw-proxy: island0 returned",
        "pw-proxy: island1 returned",
    ]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "expected -- and a program, or --listen; see pw-proxy --help"),
        (["--listen", "unix:/tmp/x", "--", "ls"], "--listen serves other programs; it takes none itself"),
        (["--with-cpu", "--listen", "unix:/tmp/x"], "--with-cpu is for pw-proxy -- PROGRAM"),
        (["--platform", "cuda", "--cpu-devices", "2", "--", "ls"], "--cpu-devices is for --platform cpu"),
        (
            ["--max-memory", "8GX", "--", "ls"],
            "--max-memory: unknown suffix 'GX'; known are B, KB, kB, MB, GB, TB, KiB, MiB, GiB, TiB",
        ),
        (["--max-memory", "0", "--", "ls"], "--max-memory: must be at least one byte, got 0"),
        (["--listen", "jax"], "--listen must be unix:PATH or HOST:PORT, got 'jax'"),
        (["--listen", ":80"], "--listen must be unix:PATH or HOST:PORT, got ':80'"),
        (["--listen", "a:65536"], "--listen must be unix:PATH or HOST:PORT, got 'a:65536'"),
        (["--insecure", "--", "ls"], "--insecure is for --listen HOST:PORT"),
        (["--joined", "--", "ls"], "--joined is for --hosts"),
        (["--launcher", "join", "--", "ls"], "--launcher is for --hosts"),
        (["--hosts", "0", "--", "ls"], "argument --hosts: must be at least 1, got 0"),
        (["--hosts", "3", "--islands", "2", "--", "ls"], "--hosts 3 cannot form 2 equal islands"),
        (["--slices", "2", "--", "ls"], "--slices is renamed to --islands"),
        (
            ["--hosts", "a,b", "--", "ls"],
            "--hosts a,b needs --bind, the address of this machine that workers on others reach",
        ),
        (
            ["--listen", "unix:/tmp/x", "--insecure"],
            "--insecure is for --listen HOST:PORT; a UNIX socket is secure",
        ),
        (
            ["--listen", "localhost:8080"],
            "--listen localhost:8080 needs --insecure: any client that reaches it runs code as you, because "
            "the client in JAX cannot authenticate itself; prefer unix:PATH",
        ),
    ],
)
def test_mistakes_on_the_command_line(
    arguments: list[str], error: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert pw_proxy.main(arguments) == 1
    assert capfd.readouterr().err == f"pw-proxy: error: {error}\n"


@pytest.mark.parametrize(
    "problem", [AssertionError(), RuntimeError("Unable to initialize backend 'cuda': none")]
)
def test_a_platform_without_devices(
    problem: Exception, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """JAX raises one of these errors without a GPU, or without its plugin."""

    def devices() -> list[jax.Device]:
        raise problem

    monkeypatch.setattr(jax, "devices", devices)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert pw_proxy.main(["--platform", "cuda", "--", "ls"]) == 1
    reason = f": {problem}" if str(problem) else ""
    assert capfd.readouterr().err == (
        f"pw-proxy: error: --platform cuda: JAX has no GPU here{reason}; nvidia-smi lists GPUs, and JAX "
        "needs its plugin for them: pip install 'jax[cuda13]'\n"
    )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--", "/no/such/program"], "program not found: '/no/such/program'"),
        (["--islands", "3", "--cpu-devices", "4", "--", "ls"], "4 devices cannot form 3 equal islands"),
    ],
)
def test_what_cannot_be_served(arguments: list[str], error: str) -> None:
    done = run(*arguments)
    assert done.returncode == 1
    assert done.stderr == f"pw-proxy: error: {error}\n"


def test_serves_at_an_address() -> None:
    command = [*COMMAND, "--listen", "127.0.0.1:0", "--insecure"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        lines = [server.stdout.readline() for _ in range(3)]
        assert re.fullmatch(r"export JAX_BACKEND_TARGET=grpc://127.0.0.1:\d+\n", lines[1])
        environment = dict(line.removeprefix("export ").rstrip().split("=") for line in lines)
        client = subprocess.run(
            [sys.executable, "-c", "import jax; print(jax.numpy.arange(3) + 1)"],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert client.stdout == "[1 2 3]\n"
        server.terminate()


@pytest.mark.feature("unmodified", "error")
def test_a_program_that_needs_more_memory_than_it_may_have() -> None:
    program = """if True:
        import jax, jax.numpy as jnp
        kept = jnp.zeros((256, 1024)) + 1
        lost = jnp.zeros((1024, 1024))
        try:
            print((lost + 1).sum())
        except jax.errors.JaxRuntimeError as error:
            print(str(error).partition(";")[0])
        print(kept.sum())
        """
    done = run("--max-memory", "4MB", "--", sys.executable, "-c", program)
    first, second = done.stdout.splitlines()
    assert first.startswith("RESOURCE_EXHAUSTED: out of memory: 4194304 bytes are needed, and "), done.stderr
    assert first.endswith(" of the server's 4000000 are in use")
    assert second == "262144.0"


def test_a_program_that_never_connects() -> None:
    """JAX before 0.12 does not register the backend by itself."""
    done = run(
        "--", sys.executable, "-c", "import jax; jax.config.update('jax_platforms', 'cpu'); jax.devices()"
    )
    assert done.returncode == 0
    assert done.stderr == (
        "pw-proxy: the program never connected: JAX does so from release 0.12 on where JAX_PLATFORMS is "
        "proxy, as pw-proxy sets it, and before that only after pathwaysutils.initialize()\n"
    )


def test_a_folder_that_others_may_enter(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    done = run("--listen", f"unix:{tmp_path}/jax")
    assert done.returncode == 1
    assert done.stderr == (
        f"pw-proxy: error: folder {tmp_path} is open to others (mode 0711), and clients of a socket there "
        f"can run code; use a new folder, such as that of {tmp_path}/private/jax, which is created\n"
    )

"""Reading of clients' programs in processes that they may crash."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import pytest
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.dialect import make_context
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.loading.local_backend import LocalBackend
from pathways.runtime.proxy.reading import program_reader, read_process
from pathways.runtime.proxy.reading.program_reader import ProgramReader
from pathways.runtime.proxy.reading.read_process import ARTIFACT, IFRT, MODULE, ProgramContexts, read_program
from pathways.runtime.proxy.serving.server import ProxyServer
from pathways.runtime.proxy.wire import descriptors
from pathways.runtime.proxy.wire.statuses import StatusError

TEXT = """
#mesh = loc("train.py":3:5)
sdy.mesh @mesh = <["x"=2]>
func.func public @main(
  %x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>, tf.aliasing_output = 0 : i32} loc("x")
) -> (tensor<8xf32> {jax.result_info = "result"}) {
  %0 = stablehlo.constant dense<[1.0, 0x7FC00001, 2.5, -0.0, 1.0, 1.0, 1.0, 1.0]> : tensor<8xf32>
  %1 = stablehlo.add %x, %0 {mhlo.name = "\\FF"} : tensor<8xf32> loc(callsite("f"(#mesh) at #mesh))
  return %1 : tensor<8xf32>
} loc(#mesh)
"""

ADD = (
    "func.func @main() -> tensor<7xi32> { "
    "%0 = stablehlo.constant dense<[1, 2, 3, 4, 5, 6, 7]> : tensor<7xi32> return %0 : tensor<7xi32> }"
)


def artifact(text: str) -> bytes:
    """Returns a portable artifact in a version that all releases of MLIR read."""
    return stablehlo.serialize_portable_artifact(ir.Module.parse(text, make_context()), "1.9.3")


def shown(module: bytes) -> str:
    """Returns a module with its locations as text."""
    return ir.Module.parse(module, make_context()).operation.get_asm(enable_debug_info=True)


@pytest.mark.parametrize("kind", [MODULE, IFRT])
def test_a_program_is_read_as_it_was_sent(kind: bytes) -> None:
    program = bytecode_of(ir.Module.parse(TEXT, make_context()))
    is_valid, read = read_program(kind, program, ProgramContexts())
    assert is_valid
    assert shown(read) == shown(program)


def test_an_artifact_becomes_bytecode() -> None:
    is_valid, read = read_program(ARTIFACT, artifact(ADD), ProgramContexts())
    assert is_valid
    assert "dense<[1, 2, 3, 4, 5, 6, 7]>" in shown(read)


def test_a_program_of_little_bytecode_and_much_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_process, "max_text_bytes", lambda _: 1 << 20)
    names = [f"!t{n} = tuple<!t{n - 1}, !t{n - 1}>" for n in range(1, 18)]
    text = "\n".join(["!t0 = tensor<f32>", *names, "func.func @main(%x: !t17) { return }"])
    assert read_program(MODULE, text.encode(), ProgramContexts()) == (False, b"its text has 5 MiB")


@pytest.fixture
def reader() -> Iterator[ProgramReader]:
    reader = ProgramReader()
    yield reader
    reader.close()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Returns the processes that were started."""
    processes = []

    def start(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        processes.append(popen(*args, **options))
        return processes[-1]

    popen = subprocess.Popen
    monkeypatch.setattr(program_reader.subprocess, "Popen", start)
    return processes


@pytest.mark.process
def test_programs_that_crash_mlir_are_errors(
    reader: ProgramReader, started: list[subprocess.Popen[bytes]]
) -> None:
    program = artifact(ADD)
    crashing = [
        program[:at] + byte + program[at + 1 :] for at, byte in [(33, b"\x11"), (39, b"\x03"), (88, b"\x03")]
    ]
    with ThreadPoolExecutor() as threads:
        errors = [threads.submit(reader.read_stablehlo, each).exception() for each in crashing]
        read = threads.submit(reader.read_stablehlo, program).result()
    for error in errors:
        assert isinstance(error, StatusError)
        assert error.message.startswith(("the program could not be read: ", "the program is not StableHLO: "))
    assert shown(read) == shown(reader.read_stablehlo(read))
    assert len(started) == 1


@pytest.mark.process
def test_a_program_that_takes_too_long(reader: ProgramReader, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = (
        "from pathways.runtime.proxy.reading import read_process; "
        "read_process.allowed_seconds = lambda _: 0.2; read_process.main()"
    )
    monkeypatch.setattr(program_reader, "_COMMAND", (sys.executable, "-P", "-c", limited))
    monkeypatch.setattr(program_reader, "allowed_seconds", lambda _: 0.2)
    steps = (f"%{n} = stablehlo.constant dense<{n}> : tensor<i32>" for n in range(100_000))
    text = f"func.func @main() {{ {' '.join(steps)} return }}"
    with pytest.raises(StatusError, match="the program could not be read: it takes longer than 0 seconds"):
        reader.read_stablehlo(text.encode())


@pytest.mark.process
def test_killed_processes_are_started_again(
    reader: ProgramReader, started: list[subprocess.Popen[bytes]]
) -> None:
    read = reader.read_stablehlo(artifact(ADD))
    # The process that has read the program is killed with it.
    started[0].kill()
    started[0].wait()
    assert reader.read_stablehlo(artifact(ADD)) == read
    assert len(started) == 2
    reader.close()
    assert started[1].returncode == -signal.SIGKILL
    with pytest.raises(StatusError, match="CANCELLED: the server is closed"):
        reader.read_stablehlo(artifact(ADD))


@pytest.mark.process
def test_the_process_exits_with_the_server() -> None:
    server, of_process = socket.socketpair()
    with of_process:
        process = subprocess.Popen(program_reader._COMMAND, stdin=of_process.fileno())
    connection, of_reader = socket.socketpair()
    with connection:
        with of_reader:
            socket.send_fds(server, [b"."], [of_reader.fileno()])
        connection.sendall((1 << 20).to_bytes(8) + MODULE)
        server.close()
        assert process.wait(30) == 0
        # The process is still reading, and has not received all bytes.
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""


@pytest.mark.process
def test_a_closed_server_reads_no_program(tmp_path: Path) -> None:
    server = ProxyServer(
        tmp_path / "socket", ServedDevices(LocalBackend(jax.devices("cpu")), descriptors.messages())
    )
    server.close()
    with pytest.raises(StatusError, match="CANCELLED: the server is closed"):
        server.served.reader.read_stablehlo(artifact(ADD))

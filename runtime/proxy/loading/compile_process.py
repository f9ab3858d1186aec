"""Compilation for CPUs in separate processes, which can be killed: XLA cannot be interrupted.

`CompileProcesses` runs in the server of programs; the processes that it starts run this module.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import msgspec

from pathways.dialect.operations.operation import nested_ops
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.runtime.resources.child_process import LimitedProcess, NoReplyError, serve_requests
from pathways.runtime.xla import code_store, ifrt, pjrt

MIN_OPERATIONS = 3000
"""Number of operations from which on a program compiles in a separate process: XLA takes seconds."""

_MAX_IDLE = 1
"""Number of idle processes that are kept for further programs; each has a quarter of a gigabyte."""

_LIMIT_S = 24 * 3600.0


class CompileRequest(msgspec.Struct, array_like=True):
    """Request to compile a program.

    Attributes:
      module: bytecode of StableHLO.
      options: a serialised `xla.CompileOptionsProto`.
      devices: the ids of the devices of the program.
      device_count: the number of CPU devices of the server.
    """

    module: bytes
    options: bytes
    devices: list[int]
    device_count: int


class CompileReply(msgspec.Struct, array_like=True):
    """Serialised executable, or XLA's error; neither if the executable cannot be serialised."""

    code: bytes | None = None
    error: str | None = None


class Cancellation:
    """Cancellation of the compilations and loops of one client, which any thread may request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[LimitedProcess] = set()
        self.is_requested = False

    def request(self) -> None:
        """Kills the processes that compile, and the starting ones."""
        with self._lock:
            self.is_requested = True
            for process in self._processes:
                process.kill()

    @contextlib.contextmanager
    def killing(self, process: LimitedProcess) -> Iterator[None]:
        """Lets a request kill a process while the context is entered."""
        with self._lock:
            self._processes.add(process)
            if self.is_requested:
                process.kill()
        try:
            yield
        finally:
            with self._lock:
                self._processes.discard(process)


class CompileProcesses:
    """Pool of processes that compile, each one program at a time. The first program starts the first one.

    Any number of threads may compile at the same time; no program waits for another one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[LimitedProcess] = []
        self._busy: set[LimitedProcess] = set()
        self._is_closed = False

    def compile(
        self, module: Any, devices: Sequence[jax.Device], options: Any, cancellation: Cancellation
    ) -> bytes | None:
        """Returns the serialised executable of a module; None if this process should compile it.

        That is so for short programs, for other platforms than CPUs, whose devices belong to this process,
        and where the executable cannot be serialised.

        Args:
          module: StableHLO, as `pjrt.parse` returns it.
          devices: the devices that the options assign.
          options: `CompileOptions`.
          cancellation: kills the process.

        Raises:
          JaxRuntimeError: XLA rejected it, the process crashed, or the compilation was cancelled.
        """
        if pjrt.platform_of(devices[0]) != "cpu" or not _is_long(module) or code_store.is_dumping():
            return None
        request = CompileRequest(
            bytecode_of(module),
            options.SerializeAsString(),
            [device.id for device in devices],
            devices[0].client.device_count(),
        )
        with self._process(cancellation) as process:
            try:
                answer = process.call(msgspec.msgpack.encode(request), _LIMIT_S)
            except NoReplyError as error:
                if cancellation.is_requested or self._is_closed:
                    raise jax.errors.JaxRuntimeError("CANCELLED: the compilation was cancelled") from None
                problem = f"the program could not be compiled: the process that compiles it {error}"
                raise jax.errors.JaxRuntimeError(f"INVALID_ARGUMENT: {problem}") from None
        reply = msgspec.msgpack.decode(answer, type=CompileReply)
        if reply.error is not None:
            raise jax.errors.JaxRuntimeError(reply.error)
        return reply.code

    def close(self) -> None:
        """Kills all processes; programs that they compile get an error."""
        with self._lock:
            self._is_closed = True
            for process in self._busy:
                process.kill()
            idle, self._idle = self._idle, []
        for process in idle:
            process.close()

    @contextlib.contextmanager
    def _process(self, cancellation: Cancellation) -> Iterator[LimitedProcess]:
        """Yields a process that runs and that no other thread uses; a cancellation kills it."""
        with self._lock:
            process = self._idle.pop() if self._idle else LimitedProcess(__name__, on_line=_forward)
            # Not by `call`, which would start a process after a cancellation. Replaces one that was killed.
            process.start()
            self._busy.add(process)
            if self._is_closed:
                process.kill()
        is_idle = False
        try:
            with cancellation.killing(process):
                yield process
            is_idle = not cancellation.is_requested  # Otherwise it may be about to exit.
        finally:
            with self._lock:
                self._busy.discard(process)
                is_kept = is_idle and not self._is_closed and len(self._idle) < _MAX_IDLE
                if is_kept:
                    self._idle.append(process)
            if not is_kept:
                process.close()


def _is_long(module: Any) -> bool:
    operations = nested_ops(module.operation.opview)
    return next(itertools.islice(operations, MIN_OPERATIONS - 1, None), None) is not None


def _forward(line: str) -> None:
    """Writes a warning of XLA where this process would have written it."""
    sys.stderr.write(line)


def _compile(request: bytes) -> bytes:
    job = msgspec.msgpack.decode(request, type=CompileRequest)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", job.device_count)
    by_id = {device.id: device for device in jax.devices()}
    devices = [by_id[number] for number in job.devices]
    try:
        executable = pjrt.compile_module(pjrt.parse(job.module), devices, ifrt.compile_options(job.options))
    except jax.errors.JaxRuntimeError as error:
        reply = CompileReply(error=str(error))
    else:
        reply = CompileReply(code=pjrt.serialize(executable))
    return msgspec.msgpack.encode(reply)


if __name__ == "__main__":
    pjrt.initialize_lapack()
    serve_requests(_compile)

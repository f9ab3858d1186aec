"""Recorded requests of real clients: the seeds of mutated ones.

`python request_seeds.py FOLDER` runs each program of `proxy_programs.py`, and one of Pathways, in a separate
client, behind a server in this process, and writes the requests of each session to a file. Runs in a separate
process, since processes that start JAX must not fork.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MAX_BUFFER_BYTES = 1 << 20
"""Maximum of bytes of a host buffer of a seed: larger ones would make all cases slow."""


@dataclasses.dataclass(frozen=True)
class RecordedSession:
    """Recorded session of a program.

    Attributes:
      name: the program.
      requests: serialised `IfrtRequest`s, in their order.
      buffers: the host buffers that the client stored, by handle.
    """

    name: str
    requests: tuple[bytes, ...]
    buffers: dict[int, bytes]


def read_seeds(folder: Path) -> list[RecordedSession]:
    """Returns the sessions in the files of a folder, without those with large host buffers."""
    seeds = [pickle.loads(path.read_bytes()) for path in sorted(folder.glob("*.session"))]
    return [seed for seed in seeds if max(map(len, seed.buffers.values()), default=0) <= MAX_BUFFER_BYTES]


def record(folder: Path, names: Sequence[str] = ()) -> None:
    """Records the sessions of programs, by default of all of them, in a separate process."""
    command = [sys.executable, __file__, str(folder), *names]
    subprocess.run(command, check=True, env=os.environ | {"JAX_PLATFORMS": "cpu"})


def _serve(folder: Path, names: Sequence[str]) -> None:
    import jax

    jax.config.update("jax_num_cpu_devices", 8)

    import pathways.proxy
    from pathways.runtime.proxy.serving import registry
    from pathways.runtime.proxy.sessions.session import ProxySession, Send

    sessions: list[RecordingSession] = []

    class RecordingSession(ProxySession):
        """Session that records its requests. It waits in its own thread, so that handles are the same."""

        def __init__(self, number: int, served: Any, send: Send, wait: Any, *rest: Any) -> None:
            super().__init__(number, served, send, lambda work: work(), *rest)
            self.requests: list[bytes] = []
            self.buffers: dict[int, bytes] = {}
            self.thread = 0
            sessions.append(self)
            store = self.host_buffers.store

            def record_buffer(handle: int, data: bytes, **flags: bool) -> None:
                # The session itself stores arrays that the client fetches.
                if threading.get_ident() != self.thread:
                    self.buffers[handle] = bytes(data)
                store(handle, data, **flags)

            self.host_buffers.store = record_buffer  # type: ignore[method-assign]

        def dispatch(self, data: bytes) -> bytes | None:
            self.requests.append(data)
            self.thread = threading.get_ident()
            return super().dispatch(data)

    registry.ProxySession = RecordingSession  # type: ignore[misc]
    with pathways.proxy.serve() as server:
        command = [sys.executable, __file__, "--client", *names]
        environment = os.environ | server.environment
        done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"cannot record: {done.stderr[-3000:]}")
    for name, session in zip(done.stdout.split(), sessions, strict=True):
        recorded = RecordedSession(name, tuple(session.requests), session.buffers)
        (folder / f"{name}.session").write_bytes(pickle.dumps(recorded))


def _run_programs(names: Sequence[str]) -> None:
    """Runs each program in a child of this process, which has imported JAX and not started it."""
    from proxy_programs import PROGRAMS

    programs = PROGRAMS | {"requests_of_pathways": _requests_of_pathways}
    for name in names or programs:
        print(name, flush=True)
        child = os.fork()
        if child == 0:
            _run(programs[name])
        _, status = os.waitpid(child, 0)
        if status != 0:
            raise RuntimeError(f"program {name} failed")


def _requests_of_pathways() -> Any:
    """Runs a program on two slices, and requests its text, a trace and the status of the server."""
    import jax
    import numpy as np

    import pathways as pw

    devices = pw.make_virtual_device_set()
    double, increment = (
        pw.jit(function, devices=devices.add_slice((1,), ("x",)))
        for function in (lambda x: x * 2, lambda x: x + 1)
    )
    step = pw.program(lambda x: increment(double(x)))
    x = np.arange(4.0, dtype=np.float32)
    compiled = step.lower(x).compile()
    compiled.memory_analysis()
    compiled.as_text("device")
    with tempfile.TemporaryDirectory() as folder, pw.trace(f"{folder}/run.json"):
        jax.block_until_ready(step(x))
    pw.status()
    return step(x)


def _run(program: Callable[[], Any]) -> None:
    from proxy_programs import to_host

    try:
        to_host(program())
    except BaseException as error:
        print(error, file=sys.stderr)
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
    if sys.argv[1] == "--client":
        _run_programs(sys.argv[2:])
    else:
        # Pickles must refer to the classes by the name of this module.
        import request_seeds

        request_seeds._serve(Path(sys.argv[1]), sys.argv[2:])

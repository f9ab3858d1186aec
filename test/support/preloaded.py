"""Python programs in processes that have imported JAX and Pathways before they start.

A new process computes for a second until both are imported. Those started here are forked from one that has
done so and has started no backend; all other state is their own, as if `subprocess` had started them. A run
of pytest has one such parent for all its processes: the first that needs it starts it.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import hashlib
import importlib
import json
import os
import runpy
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_MODULES = (
    "jax.numpy",
    "pathways.compiler.placed",
    "pathways.runtime.clusters.worker_process",
    "pathways.tools.drivers.bundle",
    "pathways.tools.drivers.compile",
    "pathways.tools.drivers.run",
    "pathways.tools.drivers.sim",
    "pathways.tools.drivers.viz",
)
_READ_AT_IMPORT = "JAX_", "PYTHONHASHSEED"
"""Prefixes of the variables that Python and JAX read when they start."""
_RUN = "PATHWAYS_TEST_PRELOADED"
"""Variable with the process of the run that all belong to, a colon, and the folder of its sockets."""


def _read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_IMPORT)}


_STARTED_WITH = _read_at_import(os.environ)
_lock = threading.Lock()

AUDIT_EVENT = "preloaded.PreloadedProcess"
"""Event of `sys.audit` at the start of a process."""


class PreloadedProcess:
    """Python program in a process of its own, with the interface of `subprocess.Popen`.

    Args:
      command: `-m` and a module, `-c` and a program, or a file; then its arguments. `-P` may stand before.
      stdin: the file descriptor of its standard input.
      stdout: the file descriptor of its standard output.
      stderr: the file descriptor of its standard error.
      cwd: its working directory.
      env: its environment; variables that are read at the start of Python, JAX or Pathways are as in this
        process.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: int,
        stderr: int,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        environment = dict(os.environ if env is None else env)
        assert fits(environment), f"what begins with {_READ_AT_IMPORT} needs a process that is new"
        sys.audit(AUDIT_EVENT, list(command))
        address = _address()
        environment[_RUN] = os.environ[_RUN]
        request = {
            "command": list(command),
            "cwd": str(Path(cwd or ".").absolute()),
            "environment": environment,
            "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        }
        self._ending = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ending.connect(address)
        with tempfile.TemporaryFile() as file:
            file.write(json.dumps(request).encode())
            file.flush()
            socket.send_fds(self._ending, [b"run"], [file.fileno(), stdin, stdout, stderr])
            self.pid = int(self._ending.recv(100))
        self.args = [sys.executable, *command]
        self.returncode: int | None = None
        self._read = threading.Lock()

    def poll(self) -> int | None:
        """Returns its exit code if it has exited, negative if a signal killed it."""
        with self._read:
            if self.returncode is None and select.select([self._ending], [], [], 0)[0]:
                # The read is empty if all processes were killed.
                self.returncode = int(self._ending.recv(100) or -signal.SIGKILL)
                self._ending.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits until it has exited.

        Raises:
          subprocess.TimeoutExpired: it has not.
        """
        with contextlib.suppress(ValueError, OSError):  # Another thread may have closed it.
            select.select([self._ending], [], [], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def kill(self) -> None:
        """Kills it, if it has not exited."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def run(
    *command: str | Path,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Returns the result of `subprocess.run([sys.executable, *command], capture_output=True, text=True)`.

    Args:
      *command: `-m` and a module, `-c` and a program, or a file; then its arguments.
      cwd: its working directory.
      env: its environment; variables that are read at the start of Python, JAX or Pathways are as in this
        process.
      timeout: the seconds until it is killed.

    Raises:
      subprocess.TimeoutExpired: it was.
    """
    words = [str(word) for word in command]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, _nothing() as none:
        process = PreloadedProcess(
            words, stdin=none.fileno(), stdout=out.fileno(), stderr=err.fileno(), cwd=cwd, env=env
        )
        late = False
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            late = True
            process.kill()
            process.wait()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    if late:
        raise subprocess.TimeoutExpired(words, timeout, *texts)
    assert process.returncode is not None
    return subprocess.CompletedProcess(words, process.returncode, *texts)


def fits(environment: Mapping[str, str]) -> bool:
    """Returns whether a process with this environment can be forked: variables read at the start are
    unchanged."""
    return _read_at_import(environment) == _STARTED_WITH


def popen(command: Sequence[str], **options: Any) -> Any:
    """Starts a worker like `subprocess.Popen`: as a forked process, if that is the same."""
    from pathways.runtime.hosts.launch.commands import worker_command

    # Spares, too, have to be new processes: they are children of this one, which forked ones are not.
    is_worker = (
        list(command[:-1]) == worker_command(sys.executable) and options["stdout"] == subprocess.DEVNULL
    )
    if not is_worker or not fits(options["env"]):
        return subprocess.Popen(command, **options)
    (read, stdin), (stderr, write) = os.pipe(), os.pipe()
    with _nothing() as none:
        process: Any = PreloadedProcess(
            command[1:-1], stdin=read, stdout=none.fileno(), stderr=write, env=options["env"]
        )
    os.close(read)
    os.close(write)
    process.stdin, process.stdout, process.stderr = os.fdopen(stdin, "wb"), None, os.fdopen(stderr, "rb")
    return process


def start_workers() -> None:
    """Forks the workers that this process starts on this machine."""
    from pathways.runtime.resources import child_process

    # Processes of pytest-xdist inherit the variable, and with it the parent.
    _join_run()
    child_process.subprocess = types.SimpleNamespace(**vars(subprocess) | {"Popen": popen})  # type: ignore[assignment]


def _nothing() -> IO[bytes]:
    return Path(os.devnull).open("r+b")


def _join_run() -> tuple[int, Path]:
    """Returns the process of the run and the folder of its sockets; begins a run if there is none."""
    if _RUN not in os.environ:
        folder = tempfile.mkdtemp(prefix="preloaded-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ[_RUN] = f"{os.getpid()}:{folder}"
    owner, _, folder = os.environ[_RUN].partition(":")
    return int(owner), Path(folder)


def _address() -> str:
    """Returns the socket of the parent; starts the parent, which exits with the run, if there is none."""
    owner, folder = _join_run()
    # Processes that have started otherwise need another one.
    started_with = json.dumps(_STARTED_WITH, sort_keys=True).encode()
    path = folder / hashlib.sha256(started_with).hexdigest()[:16]
    # Threads hold the one lock, processes the other.
    with _lock, (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _start_parent(owner, path)
    return str(path)


def _start_parent(owner: int, path: Path) -> None:
    ends = os.pidfd_open(owner)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen(64)
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import preloaded; "
        f"preloaded.serve({listener.fileno()}, {ends})"
    )
    command = [sys.executable, "-P", "-c", code]
    # The test that needs it first may have changed variables that are read at the start.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_READ_AT_IMPORT)}
    parent = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, pass_fds=[listener.fileno(), ends], env=inherited | _STARTED_WITH
    )
    # A `Popen` that is garbage-collected warns about its running process.
    atexit.register(parent.poll)
    listener.close()
    os.close(ends)


def serve(number: int, ends: int) -> None:
    """Runs the process that forks the others.

    Args:
      number: the file descriptor of the socket for requests.
      ends: the pidfd of the process of the run, with which this process exits.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(number, False)
    os.set_inheritable(ends, False)
    for name in _MODULES:
        importlib.import_module(name)
    start_workers()
    # Forked processes should not traverse the objects that all of them share, which would copy their pages.
    gc.freeze()
    # Forked workers run this module as a program: `runpy` warns if it is imported already.
    del sys.modules["pathways.runtime.clusters.worker_process"]
    listener = socket.socket(fileno=number)
    with selectors.DefaultSelector() as ready:
        ready.register(listener, selectors.EVENT_READ)
        ready.register(ends, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fd == ends:
                    return
                if key.fileobj is listener:
                    _fork(listener, ready)
                else:
                    pid, requester = key.data
                    _, status = os.waitpid(pid, 0)
                    ready.unregister(key.fd)
                    os.close(key.fd)
                    with contextlib.suppress(OSError), requester:  # The requester may have exited.
                        requester.send(str(os.waitstatus_to_exitcode(status)).encode())


def _fork(listener: socket.socket, ready: selectors.BaseSelector) -> None:
    requester, _ = listener.accept()
    _, descriptors, _, _ = socket.recv_fds(requester, 100, 4)
    if len(descriptors) != 4:
        requester.close()
        return
    if pid := os.fork():
        ready.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, requester))
        requester.send(str(pid).encode())
        for descriptor in descriptors:
            os.close(descriptor)
        return
    with os.fdopen(os.dup(descriptors[0]), "rb") as file:
        file.seek(0)
        request = json.load(file)
    for key in ready.get_map().values():
        os.close(key.fd)
        if key.data is not None:
            key.data[1].close()
    ready.close()
    requester.close()
    for target, descriptor in enumerate(descriptors[1:]):
        os.dup2(descriptor, target)
    for descriptor in descriptors:
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    _main(request["command"], request["cwd"], request["environment"])


def _main(command: Sequence[str], cwd: str, environment: Mapping[str, str]) -> None:
    """Runs a forked process; does not return."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    if "COVERAGE_PROCESS_CONFIG" in environment and (coverage := sys.modules.get("coverage")):
        # A measurement of its own, whose context is the test.
        coverage.process_startup(force=True)
    given = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    installed = [path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix))]
    first = [""]
    if command[0] == "-P":
        first, command = [], command[1:]
    sys.path[:] = [*first, *given, *installed]
    code = 0
    try:
        match command:
            case ["-m", module, *arguments]:
                sys.argv[:] = [module, *arguments]
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            case ["-c", program, *arguments]:
                sys.argv[:] = ["-c", *arguments]
                sys.modules["__main__"] = main = types.ModuleType("__main__")
                exec(compile(program, "<string>", "exec"), vars(main))
            case [path, *arguments]:
                sys.path[0] = str(Path(path).resolve().parent)
                sys.argv[:] = [path, *arguments]
                runpy.run_path(path, run_name="__main__")
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
        if isinstance(exit.code, str):
            print(exit.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

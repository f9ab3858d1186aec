"""Compiles computations for devices, each once, and loads the code elsewhere and in later processes."""

from __future__ import annotations

import atexit
import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from pathways.runtime.plan.plan import Computation
from pathways.runtime.xla import code_store, pjrt
from pathways.runtime.xla.code_store import CodeStore

Progress = Callable[[int, int], None]
"""Called with the number of computations that are ready and the number of all."""


_FORMAT = b"1"
"""Part of every key of stored code: to be changed with what compiling or loading it does."""


class CompileError(RuntimeError):
    """XLA refused a computation."""


class Loaded:
    """An executable on its devices.

    Attributes:
      executable: the executable.
      fresh: whether it was compiled here. Only then can it be serialised: a copy would lose its code.
      copied: what it is a copy of, kept for copies to come.
      callbacks: the Python callbacks that it calls.
    """

    __slots__ = ("__weakref__", "callbacks", "copied", "executable", "fresh")

    def __init__(
        self,
        executable: pjrt.LoadedExecutable,
        *,
        fresh: bool = False,
        copied: Loaded | None = None,
        callbacks: Sequence[object] = (),
    ) -> None:
        self.executable = executable
        self.fresh = fresh
        self.copied = copied
        self.callbacks = callbacks

    @property
    def origin(self) -> Loaded | None:
        """What copies for other devices are made of; None when they must be compiled."""
        return self if self.fresh else self.copied


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
    """A computation to load on the devices of a slice.

    Callbacks are the host callbacks of JAX's lowering, by the index that the module names them with. `code`
    is its serialised executable, where there is one that was made for such devices.
    """

    computation: Computation
    slice: str
    devices: tuple[jax.Device, ...]
    callbacks: tuple[object, ...] = ()
    code: bytes | memoryview | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class _Job:
    """One computation on its way to its devices.

    Attributes:
      key: which module with which options, and the devices.
      store: where its code is kept for later processes; None when it cannot be.
      stored: its key there.
    """

    request: Request
    key: tuple[bytes, tuple[jax.Device, ...]]
    options: Any
    store: CodeStore | None
    stored: str

    def compile(self) -> Loaded:
        request = self.request
        try:
            executable, fresh = pjrt.compile_and_load(
                request.computation.module, request.devices, self.options, request.callbacks
            )
        except jax.errors.JaxRuntimeError as error:
            line = str(error).strip().partition("\n")[0]
            raise CompileError(
                f"computation {request.computation.name} on slice {request.slice}: {line}"
            ) from error
        if fresh and self.store is not None and (code := pjrt.serialize(executable)) is not None:
            self.store.write(self.stored, code)
        return Loaded(executable, fresh=fresh and not request.callbacks, callbacks=request.callbacks)

    def compile_anew(self) -> pjrt.LoadedExecutable:
        """For serialisation, whatever caches hold."""
        return pjrt.compile_anew(self.request.computation.module, self.request.devices, self.options)

    def read(self) -> bytes | None:
        """The code that came with the request, or that an earlier process stored."""
        if self.request.code is not None:
            return bytes(self.request.code)
        return self.store.read(self.stored) if self.store is not None else None

    def load(self, code: bytes, origin: Loaded | None) -> Loaded:
        """Loads a copy of an executable of this process, or code that `read` has found."""
        try:
            return Loaded(pjrt.deserialize(code, self.request.devices, self.options), copied=origin)
        except jax.errors.JaxRuntimeError:
            if origin is not None:
                raise
            # What the key does not tell apart, XLA may: compiling always works.
            if self.store is not None and self.request.code is None:
                self.store.discard(self.stored)
            return self.compile()


_compilers: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

# Held while a program loads: a second program that needs the same computations then finds them.
_load_lock = threading.Lock()
_loaded: weakref.WeakValueDictionary[tuple[bytes, tuple[jax.Device, ...]], Loaded] = (
    weakref.WeakValueDictionary()
)


def load_all(requests: Sequence[Request], progress: Progress | None = None) -> list[Loaded]:
    """Compiles or finds all computations, in parallel, and returns them in the same order.

    Equal modules with equal options on equally many devices are compiled once; other slices load a copy
    of the code, and so do later processes (`runtime/xla/code_store.py`). An executable lives as long as a
    program that uses it.

    Raises:
      CompileError: XLA refused one of them; the rest is given up.
      ValueError: the environment asks for a code store in a way that makes no sense.
      KeyboardInterrupt: at once; computations that XLA is busy with finish in the background, and the process
        ends after them or with another Ctrl-C.
    """
    store = code_store.from_environment()
    jobs = [_job(request, store) for request in requests]
    with _load_lock:
        ready = {job.key: loaded for job in jobs if (loaded := _loaded.get(job.key)) is not None}
        waiting = {job.key: job for job in jobs if job.key not in ready}
        origins = {
            digest: loaded.origin for (digest, _), loaded in _loaded.items() if loaded.origin is not None
        }
        first = {job.key[0]: job for job in reversed(waiting.values()) if job.key[0] not in origins}
        code = {digest: found for digest, job in first.items() if (found := job.read()) is not None}
        report = _Report(len(waiting), progress)
        missing = [job for digest, job in first.items() if digest not in code]
        compiled = _in_threads([(job.key, job.compile) for job in missing], report)
        for key, loaded in compiled.items():
            ready[key] = loaded
            if loaded.origin is not None:
                origins[key[0]] = loaded
        rest = [job for job in waiting.values() if job.key not in ready]
        for digest in {job.key[0] for job in rest} & origins.keys():
            if (raw := pjrt.serialize(origins[digest].executable)) is not None:
                code[digest] = raw
        ready |= _in_threads([(job.key, _second(job, origins, code)) for job in rest], report)
        report.close()
        # Not with callbacks: their keys are good for this call only.
        _loaded.update((job.key, ready[job.key]) for job in jobs if not job.request.callbacks)
    if missing and store is not None:
        store.trim()
    return [ready[job.key] for job in jobs]


def serialize_all(requests: Sequence[Request]) -> list[bytes]:
    """The code of each computation in the same order, for `Request.code` of any process on such devices.

    What this process has only copies of comes from the store, or is compiled again.

    Raises:
      CompileError: the platform cannot serialise its executables.
    """
    store = code_store.from_environment()
    jobs = [_job(request, store) for request in requests]
    with _load_lock:
        origins = {digest: loaded.origin for (digest, _), loaded in _loaded.items() if loaded.origin}
    raw: dict[bytes, bytes] = {}
    for job in jobs:
        if job.key[0] in raw:
            continue
        origin = origins.get(job.key[0])
        code = job.read() if origin is None else pjrt.serialize(origin.executable)
        if code is None:
            code = pjrt.serialize(job.compile_anew())
        if code is None:
            platform = job.request.devices[0].platform
            raise CompileError(f"executables of the platform {platform} cannot be serialised")
        raw[job.key[0]] = code
    return [raw[job.key[0]] for job in jobs]


def code_target(computation: Computation, devices: Sequence[jax.Device]) -> str:
    """A digest of what serialised code of a computation depends on besides its module."""
    sizes = len(computation.operands), len(computation.results)
    parts = [_FORMAT, pjrt.environment(devices), pjrt.fingerprint(devices, *sizes)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _job(request: Request, store: CodeStore | None) -> _Job:
    computation, devices = request.computation, request.devices
    sizes = len(computation.operands), len(computation.results)
    digest = hashlib.sha256(pjrt.fingerprint(devices, *sizes) + computation.module)
    for callback in request.callbacks:
        digest.update(b"%d," % id(callback))
    key = digest.digest()
    stored = hashlib.sha256(b"\0".join([_FORMAT, pjrt.environment(devices), key])).hexdigest()
    options = pjrt.compile_options(devices, *sizes)
    # A callback is an object of this process.
    return _Job(request, (key, devices), options, store if not request.callbacks else None, stored)


def _second(job: _Job, origins: dict[bytes, Loaded], code: dict[bytes, bytes]) -> Callable[[], Loaded]:
    found = code.get(job.key[0])
    if found is None:
        return job.compile
    return lambda: job.load(found, origins.get(job.key[0]))


def _in_threads[K, T](tasks: Iterable[tuple[K, Callable[[], T]]], report: _Report) -> dict[K, T]:
    """Runs the tasks on as many threads as there are processors; the first exception ends it."""
    futures: dict[concurrent.futures.Future[T], K] = {}
    waiting: collections.deque[tuple[concurrent.futures.Future[T], Callable[[], T]]] = collections.deque()
    for key, task in tasks:
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        futures[future] = key
        waiting.append((future, task))
    for _ in range(min(len(waiting), os.cpu_count() or 1)):
        # A daemon, because Python waits for other threads before it asks `_finish_before_exit`.
        thread = threading.Thread(target=_work, args=(waiting,), name="pathways-compile", daemon=True)
        _compilers.add(thread)
        thread.start()
    results: dict[K, T] = {}
    pending = set(futures)
    try:
        while pending:
            done, pending = concurrent.futures.wait(
                pending, report.patience(), concurrent.futures.FIRST_COMPLETED
            )
            for future in done:
                results[futures[future]] = future.result()
            report.add(len(done))
    finally:
        # Without waiting: XLA cannot be interrupted, and the user who pressed Ctrl-C should not wait for it.
        waiting.clear()
    return results


def _work[T](waiting: collections.deque[tuple[concurrent.futures.Future[T], Callable[[], T]]]) -> None:
    """Runs waiting tasks until there are none."""
    while True:
        try:
            future, task = waiting.popleft()
        except IndexError:
            return
        try:
            future.set_result(task())
        except BaseException as error:
            future.set_exception(error)


@atexit.register
def _finish_before_exit() -> None:
    """Waits for what XLA still compiles after an interrupted load, unless the user presses Ctrl-C again.

    A process that ends while XLA works crashes; one that a signal kills does not.
    """
    busy = [thread for thread in _compilers if thread.is_alive()]
    if busy and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with contextlib.suppress(OSError, ValueError):  # Nobody may read them any more.
            sys.stdout.flush()
            line = "pathways: waiting for XLA to finish what it compiles; Ctrl-C ends the process at once"
            print(line, file=sys.stderr, flush=True)
    for thread in busy:
        thread.join()


class _Report:
    """A progress line on standard error for loads that take longer than a second."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.total = total
        self.done = 0
        self.progress = progress
        self.began = time.monotonic()
        self.written = False

    def patience(self) -> float | None:
        """How many seconds to wait before a line is due when nothing gets ready; None for any time."""
        if self.progress is not None or self.written:
            return None
        return max(0.0, self.began + 1.0 - time.monotonic())

    def add(self, count: int) -> None:
        self.done += count
        if self.progress is not None:
            self.progress(self.done, self.total)
        elif time.monotonic() - self.began >= 1.0:
            terminal = sys.stderr.isatty()
            if terminal or not self.written:
                line = f"pathways: compiling {self.done}/{self.total} computations ..."
                print(
                    f"\r{line}" if terminal else line,
                    end="" if terminal else "\n",
                    file=sys.stderr,
                    flush=True,
                )
            self.written = True

    def close(self) -> None:
        if self.written and sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)

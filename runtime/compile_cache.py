"""Compiles computations for devices, each once for the whole process, and loads the code elsewhere."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from pathways.runtime import pjrt
from pathways.runtime.plan import Computation

Progress = Callable[[int, int], None]
"""Called with the number of computations that are ready and the number of all."""


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

    Callbacks are the host callbacks of JAX's lowering, by the index that the module names them with.
    """

    computation: Computation
    slice: str
    devices: tuple[jax.Device, ...]
    callbacks: tuple[object, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class _Job:
    request: Request
    key: tuple[bytes, tuple[jax.Device, ...]]
    options: Any

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
        return Loaded(executable, fresh=fresh and not request.callbacks, callbacks=request.callbacks)

    def copy(self, origin: Loaded, raw: bytes) -> Loaded:
        return Loaded(pjrt.deserialize(raw, self.request.devices, self.options), copied=origin)


# Held while a program loads: a second program that needs the same computations then finds them.
_load_lock = threading.Lock()
_loaded: weakref.WeakValueDictionary[tuple[bytes, tuple[jax.Device, ...]], Loaded] = (
    weakref.WeakValueDictionary()
)


def load_all(requests: Sequence[Request], progress: Progress | None = None) -> list[Loaded]:
    """Compiles or finds all computations, in parallel, and returns them in the same order.

    Equal modules with equal options on equally many devices are compiled once; other slices load a copy
    of the code. An executable lives as long as a program that uses it.

    Raises:
      CompileError: XLA refused one of them; the rest is given up.
      KeyboardInterrupt: at once; computations that XLA is busy with finish in the background.
    """
    jobs = [_job(request) for request in requests]
    with _load_lock:
        ready = {job.key: loaded for job in jobs if (loaded := _loaded.get(job.key)) is not None}
        waiting = {job.key: job for job in jobs if job.key not in ready}
        origins = {
            digest: loaded.origin for (digest, _), loaded in _loaded.items() if loaded.origin is not None
        }
        first = {job.key[0]: job for job in reversed(waiting.values()) if job.key[0] not in origins}
        report = _Report(len(waiting), progress)
        compiled = _in_threads([(job.key, job.compile) for job in first.values()], report)
        for key, loaded in compiled.items():
            ready[key] = loaded
            if loaded.origin is not None:
                origins[key[0]] = loaded
        rest = [job for job in waiting.values() if job.key not in ready]
        bytes_of = {
            digest: pjrt.serialize(origins[digest].executable)
            for digest in {job.key[0] for job in rest}
            if digest in origins
        }
        tasks = [(job.key, _second(job, origins, bytes_of)) for job in rest]
        ready |= _in_threads(tasks, report)
        report.close()
        # Not with callbacks: their keys are good for this call only.
        _loaded.update((job.key, ready[job.key]) for job in jobs if not job.request.callbacks)
    return [ready[job.key] for job in jobs]


def _job(request: Request) -> _Job:
    computation, devices = request.computation, request.devices
    sizes = len(computation.operands), len(computation.results)
    digest = hashlib.sha256(pjrt.fingerprint(devices, *sizes) + computation.module)
    for callback in request.callbacks:
        digest.update(b"%d," % id(callback))
    return _Job(request, (digest.digest(), devices), pjrt.compile_options(devices, *sizes))


def _second(
    job: _Job, origins: dict[bytes, Loaded], bytes_of: dict[bytes, bytes | None]
) -> Callable[[], Loaded]:
    raw = bytes_of.get(job.key[0])
    if raw is None:
        return job.compile
    origin = origins[job.key[0]]
    return lambda: job.copy(origin, raw)


def _in_threads[K, T](tasks: Iterable[tuple[K, Callable[[], T]]], report: _Report) -> dict[K, T]:
    """Runs the tasks on as many threads as there are processors; the first exception ends it."""
    pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count(), "pathways-compile")
    futures = {pool.submit(task): key for key, task in tasks}
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
        pool.shutdown(wait=False, cancel_futures=True)
    return results


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

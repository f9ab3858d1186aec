"""Cache of compiled computations: each is compiled once, and its code loaded on other slices and later."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from pathways.dialect.errors import PathwaysError
from pathways.runtime.plan.plan import Computation
from pathways.runtime.xla import code_store, pjrt
from pathways.runtime.xla.code_store import CodeStore
from pathways.runtime.xla.compile_threads import Progress, ProgressLine, in_threads, run_later

_FORMAT = b"1"
"""Prefix of the input of every key of stored code. Change it together with compilation or loading."""


class CompileError(PathwaysError, RuntimeError):
    """Error of a computation that XLA rejects."""

    # Tracebacks show the public name.
    __module__ = "pathways"


@dataclasses.dataclass(eq=False, slots=True, weakref_slot=True)
class Loaded:
    """Executable on its devices.

    Attributes:
      provenance: `compiled`, or the source of its code.
      seconds: the time that compiling or loading took.
      fresh: whether this process compiled it. No other executable can be serialised: a copy loses its code.
      copied: the executable that it is a copy of, kept for further copies.
      callbacks: the Python callbacks that it calls.
    """

    executable: pjrt.LoadedExecutable
    _: dataclasses.KW_ONLY
    provenance: str = "compiled"
    seconds: float = 0.0
    fresh: bool = False
    copied: Loaded | None = None
    callbacks: Sequence[object] = ()

    @property
    def origin(self) -> Loaded | None:
        """The source of copies for other devices; None if they must be compiled."""
        return self if self.fresh else self.copied


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
    """Request to load a computation on the devices of a slice.

    Callbacks are the host callbacks of JAX's lowering, by the index that the module refers to. `code` is its
    serialised executable, if there is one for such devices.
    """

    computation: Computation
    slice: str
    devices: tuple[jax.Device, ...]
    callbacks: tuple[object, ...] = ()
    code: bytes | memoryview | None = None


Key = tuple[bytes, tuple[jax.Device, ...]]
"""A digest of the module and of its compile options, and the devices."""


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """Work of one request: its key, its compile options, and its place in the code store.

    Attributes:
      key: the key of the executable; requests with equal keys share it.
      store: the store of its code for later processes; None if the code cannot be stored.
      stored: its key in the store.
    """

    request: Request
    key: Key
    options: Any
    store: CodeStore | None
    stored: str

    def compile(self) -> Loaded:
        """Compiles the computation, and stores its code for later processes."""
        request = self.request
        start = time.perf_counter()
        try:
            executable, fresh = pjrt.compile_and_load(
                request.computation.module, request.devices, self.options, request.callbacks
            )
        except jax.errors.JaxRuntimeError as error:
            line = str(error).strip().partition("\n")[0]
            raise CompileError(
                f"computation {request.computation.name} on slice {request.slice}: {line}"
            ) from error
        seconds = time.perf_counter() - start
        if fresh and self.store is not None and (code := pjrt.serialize(executable)) is not None:
            self.store.write(self.stored, code)
        return Loaded(
            executable,
            provenance="compiled" if fresh else "from the cache of JAX",
            seconds=seconds,
            fresh=fresh and not request.callbacks,
            callbacks=request.callbacks,
        )

    def compile_anew(self) -> pjrt.LoadedExecutable:
        """Compiles the computation for serialisation, past all caches."""
        return pjrt.compile_anew(self.request.computation.module, self.request.devices, self.options)

    def read_code(self) -> bytes | None:
        """Returns the code that came with the request, or that an earlier process stored."""
        if self.request.code is not None:
            return bytes(self.request.code)
        return self.store.read(self.stored) if self.store is not None else None

    def load_copy(self, code: bytes, origin: Loaded) -> Loaded:
        """Loads the code of another executable of this process."""
        start = time.perf_counter()
        executable = pjrt.deserialize(code, self.request.devices, self.options)
        seconds = time.perf_counter() - start
        return Loaded(executable, provenance="copied from another slice", seconds=seconds, copied=origin)

    def load_code(self, code: bytes) -> Loaded:
        """Loads the code that `read_code` has returned; compiles if XLA rejects it."""
        provenance = "from the code store" if self.request.code is None else "from the bundle"
        start = time.perf_counter()
        try:
            executable = pjrt.deserialize(code, self.request.devices, self.options)
            return Loaded(executable, provenance=provenance, seconds=time.perf_counter() - start)
        except jax.errors.JaxRuntimeError:
            # XLA may distinguish machines or versions that the key does not.
            if self.store is not None and self.request.code is None:
                self.store.discard(self.stored)
            return self.compile()


@dataclasses.dataclass(frozen=True)
class ReuseLoaded:
    """Action that uses the executable of an earlier program on the same devices."""

    loaded: Loaded


@dataclasses.dataclass(frozen=True)
class LoadStored:
    """Action that loads code that came with the request, or that an earlier process stored."""

    code: bytes = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Compile:
    """Action that compiles a computation for which there is no code."""


@dataclasses.dataclass(frozen=True)
class CopyLoaded:
    """Action that copies the executable of an earlier program on other devices."""

    origin: Loaded


@dataclasses.dataclass(frozen=True)
class CopyCompiled:
    """Action that copies an executable that the same load compiles for other devices, under key `first`."""

    first: Key


LoadAction = ReuseLoaded | LoadStored | Compile | CopyLoaded | CopyCompiled
"""Action that brings a computation to its devices."""


# Held while a program loads, so that another program with the same computations finds them afterwards.
_load_lock = threading.Lock()
_loaded: weakref.WeakValueDictionary[Key, Loaded] = weakref.WeakValueDictionary()


def load_all(
    requests: Sequence[Request], progress: Progress | None = None, program: str = ""
) -> list[Loaded]:
    """Loads all computations, in parallel, and returns them in the same order.

    Equal modules with equal options on equal numbers of devices are compiled once; other slices load a copy
    of the code, and so do later processes (`runtime/xla/code_store.py`). An executable lives as long as any
    program that uses it.

    Args:
      requests: the computations.
      progress: called whenever computations become ready; by default a line on standard error shows them.
      program: the name of the program, for that line.

    Raises:
      CompileError: XLA rejected one of them; the load stops.
      ValueError: the environment configures the code store incorrectly.
      KeyboardInterrupt: at once; computations that XLA is busy with finish in the background, and the process
        exits after them or at another Ctrl-C.
    """
    store = code_store.from_environment()
    jobs = [_job(request, store) for request in requests]
    by_key = {job.key: job for job in jobs}
    with _load_lock:
        actions = choose_actions(by_key)
        ready = _run_actions(by_key, actions, progress, program)
        # Keys with callbacks hold the ids of Python objects, which are valid during this call only.
        _loaded.update((key, ready[key]) for key, job in by_key.items() if not job.request.callbacks)
    return [ready[job.key] for job in jobs]


def choose_actions(jobs: Mapping[Key, Job]) -> dict[Key, LoadAction]:
    """Chooses the cheapest action for each computation. Reads stored code, but compiles nothing."""
    origins = _origins()
    firsts: dict[bytes, Key] = {}
    actions: dict[Key, LoadAction] = {}
    for key, job in jobs.items():
        digest, _ = key
        loaded = _loaded.get(key)
        if loaded is not None:
            actions[key] = ReuseLoaded(loaded)
        elif digest in origins:
            actions[key] = CopyLoaded(origins[digest])
        elif digest not in firsts:
            code = job.read_code()
            actions[key] = Compile() if code is None else LoadStored(code)
            firsts[digest] = key
        else:
            of_first = actions[firsts[digest]]
            actions[key] = of_first if isinstance(of_first, LoadStored) else CopyCompiled(firsts[digest])
    return actions


def _run_actions(
    jobs: Mapping[Key, Job], actions: Mapping[Key, LoadAction], progress: Progress | None, program: str
) -> dict[Key, Loaded]:
    """Runs all actions; returns the executables. Copies of computations that this load compiles are last."""
    ready: dict[Key, Loaded] = {}
    first_tasks: dict[Key, Callable[[], Loaded]] = {}
    copies: list[tuple[Key, Key]] = []
    # Once for each executable, whatever the number of slices that get a copy.
    codes = functools.cache(lambda origin: pjrt.serialize(origin.executable))

    def copy(job: Job, origin: Loaded | None) -> Callable[[], Loaded]:
        # Compiled again where the executable cannot be serialised, see `Loaded.fresh`.
        if origin is None or (code := codes(origin)) is None:
            return job.compile
        return functools.partial(job.load_copy, code, origin)

    for key, action in actions.items():
        match action:
            case ReuseLoaded(loaded):
                ready[key] = loaded
            case LoadStored(code):
                first_tasks[key] = functools.partial(jobs[key].load_code, code)
            case Compile():
                first_tasks[key] = jobs[key].compile
            case CopyLoaded(origin):
                first_tasks[key] = copy(jobs[key], origin)
            case CopyCompiled(first):
                copies.append((key, first))
    line = ProgressLine(len(first_tasks) + len(copies), progress, program)
    ready |= in_threads(first_tasks.items(), line)
    ready |= in_threads([(key, copy(jobs[key], ready[first].origin)) for key, first in copies], line)
    line.close()
    return ready


def load_one(
    program: bytes,
    module: Any,
    devices: Sequence[jax.Device],
    options: Any,
    compile_apart: Callable[[], bytes | None] = lambda: None,
) -> pjrt.LoadedExecutable:
    """Compiles a module with given options, or loads the code that an earlier process has stored.

    The caller does not wait until the code is stored.

    Args:
      program: the bytes that the module was parsed from, for the key of its code.
      module: StableHLO, as `pjrt.parse` returns it.
      devices: the devices that the options assign.
      options: `CompileOptions`.
      compile_apart: compiles the module elsewhere, and returns its code; None where this process compiles it.

    Raises:
      JaxRuntimeError: XLA rejected it.
    """
    store = code_store.from_environment()
    fields = [_FORMAT, pjrt.environment(devices), options.SerializeAsString(), program]
    key = hashlib.sha256(b"\0".join(fields)).hexdigest()
    stored = None if store is None else store.read(key)
    if store is not None and stored is not None:
        try:
            return pjrt.deserialize(stored, devices, options)
        except jax.errors.JaxRuntimeError:
            store.discard(key)
    code = compile_apart()
    if code is None:
        executable = pjrt.compile_module(module, devices, options)
    else:
        executable = pjrt.deserialize(code, devices, options)

    def write() -> None:
        assert store is not None
        # An executable that was loaded cannot be serialised again.
        if (written := code or pjrt.serialize(executable)) is not None:
            store.write(key, written)

    if store is not None:
        run_later(write)
    return executable


def serialize_all(requests: Sequence[Request]) -> list[bytes]:
    """Returns the code of each computation in the same order, as `Request.code` of other processes.

    If this process has only copies of a computation, its code is read from the store, or compiled again.

    Raises:
      CompileError: the platform cannot serialise its executables.
    """
    store = code_store.from_environment()
    jobs = [_job(request, store) for request in requests]
    with _load_lock:
        origins = _origins()
    raw: dict[bytes, bytes] = {}
    for job in jobs:
        if job.key[0] in raw:
            continue
        origin = origins.get(job.key[0])
        code = job.read_code() if origin is None else pjrt.serialize(origin.executable)
        if code is None:
            code = pjrt.serialize(job.compile_anew())
        if code is None:
            platform = job.request.devices[0].platform
            raise CompileError(f"executables of the platform {platform} cannot be serialised")
        raw[job.key[0]] = code
    return [raw[job.key[0]] for job in jobs]


def code_target(computation: Computation, devices: Sequence[jax.Device]) -> str:
    """Returns a digest of all that serialised code of a computation depends on, except its module."""
    sizes = len(computation.operands), len(computation.results)
    fields = [_FORMAT, pjrt.environment(devices), pjrt.fingerprint(devices, *sizes)]
    return hashlib.sha256(b"\0".join(fields)).hexdigest()


def _job(request: Request, store: CodeStore | None) -> Job:
    computation, devices = request.computation, request.devices
    sizes = len(computation.operands), len(computation.results)
    digest = hashlib.sha256(pjrt.fingerprint(devices, *sizes) + computation.module)
    for callback in request.callbacks:
        digest.update(b"%d," % id(callback))
    key = digest.digest()
    stored = hashlib.sha256(b"\0".join([_FORMAT, pjrt.environment(devices), key])).hexdigest()
    options = pjrt.compile_options(devices, *sizes)
    # Code with callbacks is not stored: a callback is an object of this process.
    return Job(request, (key, devices), options, store if not request.callbacks else None, stored)


def _origins() -> dict[bytes, Loaded]:
    """Returns the executables that can be copied, by the digest of their computation."""
    return {
        digest: origin for (digest, _), loaded in _loaded.items() if (origin := loaded.origin) is not None
    }

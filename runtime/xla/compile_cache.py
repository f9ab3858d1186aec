"""Compiles computations for devices, each once, and loads the code elsewhere and in later processes."""

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
from pathways.runtime.xla.compile_threads import Progress, ProgressLine, in_threads

_FORMAT = b"1"
"""Part of every key of stored code: to be changed with what compiling or loading it does."""


class CompileError(PathwaysError, RuntimeError):
    """XLA refused a computation."""

    # As which tracebacks name it.
    __module__ = "pathways"


class Loaded:
    """An executable on its devices.

    Attributes:
      executable: the executable.
      how: how it got here: `compiled`, or where its code came from.
      seconds: how long that took.
      fresh: whether it was compiled here. Only then can it be serialised: a copy would lose its code.
      copied: what it is a copy of, kept for copies to come.
      callbacks: the Python callbacks that it calls.
    """

    __slots__ = ("__weakref__", "callbacks", "copied", "executable", "fresh", "how", "seconds")

    def __init__(
        self,
        executable: pjrt.LoadedExecutable,
        *,
        how: str = "compiled",
        seconds: float = 0.0,
        fresh: bool = False,
        copied: Loaded | None = None,
        callbacks: Sequence[object] = (),
    ) -> None:
        self.executable = executable
        self.how = how
        self.seconds = seconds
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


Key = tuple[bytes, tuple[jax.Device, ...]]
"""A digest of the module and the options it is compiled with, and the devices."""


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """One computation to bring to its devices.

    Attributes:
      request: what was asked for.
      key: the same for requests that one executable serves.
      options: of the compiler.
      store: where its code is kept for later processes; None when it cannot be.
      stored: its key there.
    """

    request: Request
    key: Key
    options: Any
    store: CodeStore | None
    stored: str

    def compile(self) -> Loaded:
        """Compiles it, and keeps its code for later processes."""
        request = self.request
        began = time.perf_counter()
        try:
            executable, fresh = pjrt.compile_and_load(
                request.computation.module, request.devices, self.options, request.callbacks
            )
        except jax.errors.JaxRuntimeError as error:
            line = str(error).strip().partition("\n")[0]
            raise CompileError(
                f"computation {request.computation.name} on slice {request.slice}: {line}"
            ) from error
        seconds = time.perf_counter() - began
        if fresh and self.store is not None and (code := pjrt.serialize(executable)) is not None:
            self.store.write(self.stored, code)
        return Loaded(
            executable,
            how="compiled" if fresh else "from the cache of JAX",
            seconds=seconds,
            fresh=fresh and not request.callbacks,
            callbacks=request.callbacks,
        )

    def compile_anew(self) -> pjrt.LoadedExecutable:
        """For serialisation, whatever caches hold."""
        return pjrt.compile_anew(self.request.computation.module, self.request.devices, self.options)

    def read_code(self) -> bytes | None:
        """The code that came with the request, or that an earlier process stored."""
        if self.request.code is not None:
            return bytes(self.request.code)
        return self.store.read(self.stored) if self.store is not None else None

    def load_copy(self, code: bytes, origin: Loaded) -> Loaded:
        """Loads the code of another executable of this process."""
        began = time.perf_counter()
        executable = pjrt.deserialize(code, self.request.devices, self.options)
        seconds = time.perf_counter() - began
        return Loaded(executable, how="copied from another slice", seconds=seconds, copied=origin)

    def load_code(self, code: bytes) -> Loaded:
        """Loads what `read_code` has read."""
        how = "from the code store" if self.request.code is None else "from the bundle"
        began = time.perf_counter()
        try:
            executable = pjrt.deserialize(code, self.request.devices, self.options)
            return Loaded(executable, how=how, seconds=time.perf_counter() - began)
        except jax.errors.JaxRuntimeError:
            # What the key does not tell apart, XLA may: compiling always works.
            if self.store is not None and self.request.code is None:
                self.store.discard(self.stored)
            return self.compile()


@dataclasses.dataclass(frozen=True)
class AlreadyLoaded:
    """A program that was loaded before has it on the same devices."""

    loaded: Loaded


@dataclasses.dataclass(frozen=True)
class LoadStored:
    """It came with the request, or an earlier process has stored it."""

    code: bytes = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Compile:
    """It is not there."""


@dataclasses.dataclass(frozen=True)
class CopyLoaded:
    """A program that was loaded before has it on other devices."""

    origin: Loaded


@dataclasses.dataclass(frozen=True)
class CopyCompiled:
    """This load compiles it for other devices, under the key `first`."""

    first: Key


Way = AlreadyLoaded | LoadStored | Compile | CopyLoaded | CopyCompiled
"""How a computation gets to its devices."""


# Held while a program loads: a second program that needs the same computations then finds them.
_load_lock = threading.Lock()
_loaded: weakref.WeakValueDictionary[Key, Loaded] = weakref.WeakValueDictionary()


def load_all(
    requests: Sequence[Request], progress: Progress | None = None, program: str = ""
) -> list[Loaded]:
    """Compiles or finds all computations, in parallel, and returns them in the same order.

    Equal modules with equal options on equally many devices are compiled once; other slices load a copy
    of the code, and so do later processes (`runtime/xla/code_store.py`). An executable lives as long as a
    program that uses it.

    Args:
      requests: the computations.
      progress: is called as they get ready; by default a line on standard error says so.
      program: the name of the program, for that line.

    Raises:
      CompileError: XLA refused one of them; the rest is given up.
      ValueError: the environment asks for a code store in a way that makes no sense.
      KeyboardInterrupt: at once; computations that XLA is busy with finish in the background, and the process
        ends after them or with another Ctrl-C.
    """
    store = code_store.from_environment()
    jobs = [_job(request, store) for request in requests]
    by_key = {job.key: job for job in jobs}
    with _load_lock:
        ways = decide(by_key)
        ready = _carry_out(by_key, ways, progress, program)
        # Not with callbacks: their keys are good for this call only.
        _loaded.update((key, ready[key]) for key, job in by_key.items() if not job.request.callbacks)
    if store is not None and Compile() in ways.values():
        store.trim()
    return [ready[job.key] for job in jobs]


def decide(jobs: Mapping[Key, Job]) -> dict[Key, Way]:
    """How each computation gets to its devices. Reads stored code, and compiles nothing."""
    origins = _origins()
    firsts: dict[bytes, Key] = {}
    ways: dict[Key, Way] = {}
    for key, job in jobs.items():
        digest, _ = key
        loaded = _loaded.get(key)
        if loaded is not None:
            ways[key] = AlreadyLoaded(loaded)
        elif digest in origins:
            ways[key] = CopyLoaded(origins[digest])
        elif digest not in firsts:
            code = job.read_code()
            ways[key] = Compile() if code is None else LoadStored(code)
            firsts[digest] = key
        else:
            of_first = ways[firsts[digest]]
            ways[key] = of_first if isinstance(of_first, LoadStored) else CopyCompiled(firsts[digest])
    return ways


def _carry_out(
    jobs: Mapping[Key, Job], ways: Mapping[Key, Way], progress: Progress | None, program: str
) -> dict[Key, Loaded]:
    """Brings each computation to its devices on its way; copies of what is compiled come last."""
    ready: dict[Key, Loaded] = {}
    at_once: dict[Key, Callable[[], Loaded]] = {}
    copies: list[tuple[Key, Key]] = []
    codes = functools.cache(lambda origin: pjrt.serialize(origin.executable))

    def copy(job: Job, origin: Loaded | None) -> Callable[[], Loaded]:
        if origin is None or (code := codes(origin)) is None:
            return job.compile
        return functools.partial(job.load_copy, code, origin)

    for key, way in ways.items():
        match way:
            case AlreadyLoaded(loaded):
                ready[key] = loaded
            case LoadStored(code):
                at_once[key] = functools.partial(jobs[key].load_code, code)
            case Compile():
                at_once[key] = jobs[key].compile
            case CopyLoaded(origin):
                at_once[key] = copy(jobs[key], origin)
            case CopyCompiled(first):
                copies.append((key, first))
    line = ProgressLine(len(at_once) + len(copies), progress, program)
    ready |= in_threads(at_once.items(), line)
    ready |= in_threads([(key, copy(jobs[key], ready[first].origin)) for key, first in copies], line)
    line.close()
    return ready


def load_one(
    program: bytes, module: Any, devices: Sequence[jax.Device], options: Any
) -> pjrt.LoadedExecutable:
    """Compiles a module with options of its own, or loads what an earlier process stored.

    Args:
      program: what the module was read from, by which its code is found again.
      module: StableHLO, as `pjrt.parse` returns it.
      devices: the devices that the options assign.
      options: `CompileOptions`.

    Raises:
      JaxRuntimeError: XLA refused it.
    """
    store = code_store.from_environment()
    if store is None:
        return pjrt.compile_module(module, devices, options)
    parts = [_FORMAT, pjrt.environment(devices), options.SerializeAsString(), program]
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()
    code = store.read(key)
    if code is not None:
        try:
            return pjrt.deserialize(code, devices, options)
        except jax.errors.JaxRuntimeError:
            store.discard(key)
    executable = pjrt.compile_module(module, devices, options)
    code = pjrt.serialize(executable)
    if code is not None:
        store.write(key, code)
        store.trim()
    return executable


def serialize_all(requests: Sequence[Request]) -> list[bytes]:
    """The code of each computation in the same order, for `Request.code` of any process on such devices.

    What this process has only copies of comes from the store, or is compiled again.

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
    """A digest of what serialised code of a computation depends on besides its module."""
    sizes = len(computation.operands), len(computation.results)
    parts = [_FORMAT, pjrt.environment(devices), pjrt.fingerprint(devices, *sizes)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _job(request: Request, store: CodeStore | None) -> Job:
    computation, devices = request.computation, request.devices
    sizes = len(computation.operands), len(computation.results)
    digest = hashlib.sha256(pjrt.fingerprint(devices, *sizes) + computation.module)
    for callback in request.callbacks:
        digest.update(b"%d," % id(callback))
    key = digest.digest()
    stored = hashlib.sha256(b"\0".join([_FORMAT, pjrt.environment(devices), key])).hexdigest()
    options = pjrt.compile_options(devices, *sizes)
    # A callback is an object of this process.
    return Job(request, (key, devices), options, store if not request.callbacks else None, stored)


def _origins() -> dict[bytes, Loaded]:
    """What copies of loaded computations are made of, by their digests."""
    return {
        digest: origin for (digest, _), loaded in _loaded.items() if (origin := loaded.origin) is not None
    }

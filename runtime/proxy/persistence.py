"""Programs that write arrays to files of the server and read them, as Orbax requests on Pathways.

The layout is the same as Orbax writes on other platforms, a folder with a Zarr array for each array, so that
each can read the files of the other; reading also supports OCDBT. All arrays of a request are written to a
hidden folder, synchronised and then renamed, so that a failed save never replaces an older array.
"""

from __future__ import annotations

import abc
import base64
import concurrent.futures
import contextlib
import dataclasses
import errno
import itertools
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pathways.runtime.data.array_files import load_tensorstore, system_error
from pathways.runtime.proxy.arrays.array_engine import ArrayEngine
from pathways.runtime.proxy.arrays.placements import DTYPES, STRING, ArraySpec, checked_shape
from pathways.runtime.proxy.arrays.proxy_array import PendingArray, ProxyArray
from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.files.file_store import (
    ArrayFolder,
    FileStore,
    SavedArrays,
    StoredArray,
    path_of,
)
from pathways.runtime.proxy.plugin_programs import PluginProgram
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError, status_of
from pathways.runtime.resources.folders import PermittedFolders, descend, refuse_links_below

Run = Callable[[Callable[[], None]], None]
"""Function that runs another one in a thread."""


class FileJob:
    """Job on files that an execution has started."""

    def __init__(self, specs: Sequence[ArraySpec], timeout: float) -> None:
        self.results = [PendingArray(spec) for spec in specs]
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._ended: concurrent.futures.Future[StatusError | None] = concurrent.futures.Future()

    @property
    def is_ready(self) -> bool:
        """Whether `wait` would not wait."""
        return self._ended.done()

    def wait(self) -> None:
        """Waits until the job is complete.

        Raises:
          StatusError: the job failed.
        """
        error = self._ended.result()
        if error is not None:
            raise error

    def end(self, error: StatusError | None = None) -> None:
        """Completes the job, with an error if it failed; no-op for a job that is complete."""
        if error is not None:
            for result in self.results:
                result.resolve(error)
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self._ended.set_result(error)

    def cancel(self) -> None:
        """Completes the job of a session that has ended, with an error; its thread stops soon after."""
        self.end(StatusError(StatusCode.CANCELLED, "the session has ended"))

    def result_of(self, future: Any) -> Any:
        """Returns the result of a future of tensorstore.

        Raises:
          StatusError: the job exceeds its timeout, or was cancelled.
        """
        while not self.is_ready:
            left = self._deadline - time.monotonic()
            if left <= 0:
                # Not DEADLINE_EXCEEDED, which libraries for elastic training take for a lost island.
                raise StatusError(StatusCode.ABORTED, f"took longer than its timeout of {self._timeout:g} s")
            # In intervals, since nothing else wakes a job that was cancelled.
            with contextlib.suppress(TimeoutError):
                return future.result(timeout=min(left, 1.0))
        raise StatusError(StatusCode.CANCELLED, "was cancelled")


@dataclasses.dataclass(frozen=True, eq=False)
class PersistenceProgram(PluginProgram):
    """Program that writes or reads arrays.

    Attributes:
      engine: the engine of its arrays.
      store: writes and reads them.
      folders: the folders that it may use.
      stored: the arrays.
      timeout: the time limit in seconds.
    """

    engine: ArrayEngine
    store: FileStore
    folders: PermittedFolders
    stored: tuple[StoredArray, ...]
    timeout: float

    @abc.abstractmethod
    def start(self, arguments: Sequence[ProxyArray], run: Run) -> FileJob:
        """Starts an execution. It does not wait: another thread reads or writes.

        Raises:
          StatusError: the arguments do not fit the program.
        """


class WriteProgram(PersistenceProgram):
    """Program that writes arrays, without results."""

    name = "persistence_write"

    def fail(self, error: StatusError) -> list[ProxyArray]:
        return []

    def start(self, arguments: Sequence[ProxyArray], run: Run) -> FileJob:
        if len(arguments) != len(self.stored):
            raise StatusError(
                StatusCode.INVALID_ARGUMENT, f"{len(arguments)} arrays for {len(self.stored)} names"
            )
        for stored, argument in zip(self.stored, arguments, strict=True):
            _check_argument(self.engine, stored, argument)
        # Outer folders first: an array may be in a folder below the folder of another one.
        pairs = sorted(
            zip(self.stored, arguments, strict=True), key=lambda pair: (pair[0].folder, pair[0].folder_names)
        )
        saves: list[SavedArrays] = []
        try:
            for _, group in itertools.groupby(pairs, lambda pair: pair[0].folder):
                saves.append(self.store.save([*group]))
        except BaseException:
            _drop_all(saves)
            raise
        job = FileJob((), self.timeout)
        run(lambda: _run(job, lambda: self._write(saves, job)))
        return job

    def _write(self, saves: list[SavedArrays], job: FileJob) -> None:
        try:
            while saves:
                with self.folders.open(saves[0].stored[0].folder, create=True) as folder:
                    _write_all(saves[0], folder, job)
                del saves[0]
        finally:
            _drop_all(saves)


class ReadProgram(PersistenceProgram):
    """Program that reads arrays into any shardings; a result holds the error of its array."""

    name = "persistence_read"

    def fail(self, error: StatusError) -> list[ProxyArray]:
        return [ProxyArray(stored.spec, error) for stored in self.stored]

    def start(self, arguments: Sequence[ProxyArray], run: Run) -> FileJob:
        if arguments:
            raise StatusError(StatusCode.INVALID_ARGUMENT, "a program that reads arrays has no arguments")
        job = FileJob([stored.spec for stored in self.stored], self.timeout)
        run(lambda: _run(job, lambda: self._read(job)))
        return job

    def _read(self, job: FileJob) -> None:
        pairs = zip(self.stored, job.results, strict=True)
        for name, group in itertools.groupby(pairs, lambda pair: pair[0].folder):
            with self.folders.open(name) as folder:
                _read_all(self.store, folder, list(group), job)


def parse_write(served: ServedDevices, body: Any) -> WriteProgram:
    """Returns the program that a `bulk_persistence_write_request` represents.

    Raises:
      StatusError: the request is invalid, or names a folder that the server may not use.
    """
    with _invalid("bulk_persistence_write_request"):
        return WriteProgram(*_fields(served, body["write_requests"], is_read=False))


def parse_read(served: ServedDevices, body: Any) -> ReadProgram:
    """Returns the program that a `bulk_persistence_read_request` represents.

    Raises:
      StatusError: the request is invalid, or names a folder that the server may not use.
    """
    with _invalid("bulk_persistence_read_request"):
        return ReadProgram(*_fields(served, body["read_requests"], is_read=True))


@contextlib.contextmanager
def _invalid(kind: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise StatusError(
            StatusCode.UNIMPLEMENTED, f"the server needs more packages to write and read arrays: {error}"
        ) from None
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise StatusError(StatusCode.INVALID_ARGUMENT, f"invalid {kind}: {error!r}") from None


def _fields(
    served: ServedDevices, requests: Sequence[Mapping[str, Any]], *, is_read: bool
) -> tuple[Any, ...]:
    """Returns devices, engine, folders, arrays and timeout of a program."""
    load_tensorstore()
    if not requests:
        raise StatusError(StatusCode.INVALID_ARGUMENT, "a request of no array")
    stored = tuple(_stored(served, request, is_read) for request in requests)
    timeout = min(
        request["timeout"]["seconds"] + request["timeout"].get("nanos", 0) / 1e9 for request in requests
    )
    return (
        stored[0].placement.devices,
        served.engine,
        served.backend.store,
        served.folders,
        stored,
        float(timeout),
    )


def _stored(served: ServedDevices, request: Mapping[str, Any], is_read: bool) -> StoredArray:
    folder, name, sharding = (
        base64.b64decode(request[f"b64_{field}"], validate=True)
        for field in ("location", "name", "hlo_sharding_string")
    )
    placement = served.hlo_placement(request["devices"]["device_ids"], sharding, None)
    shape, dtype = request["shape"], None
    if is_read:
        kind, shape = shape["xla_primitive_type_str"], shape["dimensions"]
        dtype = DTYPES.get(kind)
        if dtype is None or dtype == STRING:
            raise StatusError(StatusCode.INVALID_ARGUMENT, f"arrays of type {kind!r} have no files")
    stored = StoredArray(folder.decode(), name.decode(), checked_shape(shape), placement, dtype)
    if any(name in ("", ".", "..") or "\0" in name for name in stored.folder_names):
        raise StatusError(StatusCode.PERMISSION_DENIED, f"invalid name: {stored}")
    try:
        served.folders.check(stored.folder)
    except PermissionError as error:
        raise status_of(error) from None
    # Raises for a sharding of another rank, or one that does not divide the shape.
    placement.shard_shape_of(stored.shape)
    return stored


def _check_argument(engine: ArrayEngine, stored: StoredArray, argument: ProxyArray) -> None:
    spec, _ = argument.read()
    shard = stored.placement.shard_shape_of(stored.shape)
    if (
        spec.shape != stored.shape
        or spec.placement.devices != stored.placement.devices
        or any(tuple(piece.shape) != shard for piece in engine.shards_of(argument))
        or spec.dtype == STRING
    ):
        raise StatusError(StatusCode.INVALID_ARGUMENT, f"the argument is not the {stored}")


def _run(job: FileJob, work: Callable[[], None]) -> None:
    """Does the work of a job, and completes the job, with the error of the work if there is one."""
    try:
        work()
        job.end()
    except Exception as error:
        job.end(_status(error))


def _drop_all(saves: Sequence[SavedArrays]) -> None:
    for save in saves:
        save.drop()


def _write_all(save: SavedArrays, folder: int, job: FileJob) -> None:
    """Writes arrays into a folder."""
    first, count = save.stored[0], len(save.stored)
    hidden = f".pw-{uuid.uuid4().hex}"
    os.mkdir(hidden, dir_fd=folder)
    try:
        with _opened(folder, [hidden]) as new:
            with _subject(str(first) if count == 1 else f"{count} arrays like {first}"):
                save.write(new, job.result_of)
            for number, stored in enumerate(save.stored):
                *outer, name = stored.folder_names
                with _subject(str(stored)), _opened(folder, outer, create=True) as parent:
                    # A rename cannot replace a folder that is not empty.
                    with contextlib.suppress(FileNotFoundError):
                        os.rename(name, f"old {number}", src_dir_fd=parent, dst_dir_fd=new)
                    try:
                        os.rename(str(number), name, src_dir_fd=new, dst_dir_fd=parent)
                    except OSError:
                        with contextlib.suppress(FileNotFoundError):
                            os.rename(f"old {number}", name, src_dir_fd=new, dst_dir_fd=parent)
                        raise
                    os.fsync(parent)
    finally:
        shutil.rmtree(hidden, ignore_errors=True, dir_fd=folder)


def _read_all(
    store: FileStore, folder: int, pairs: Sequence[tuple[StoredArray, PendingArray]], job: FileJob
) -> None:
    """Reads arrays from a folder."""
    is_ocdbt = Path(path_of(folder), "manifest.ocdbt").exists()
    if is_ocdbt:
        refuse_links_below(folder)
    first_error: StatusError | None = None
    for stored, result in pairs:
        try:
            with _subject(str(stored)), contextlib.ExitStack() as stack:
                source = ArrayFolder(folder, stored.name)
                if not is_ocdbt:
                    of_array = stack.enter_context(_opened(folder, stored.folder_names))
                    refuse_links_below(of_array)
                    source = ArrayFolder(of_array)
                result.resolve(store.read(stored, source, job.result_of))
        except Exception as error:
            status = _status(error)
            result.resolve(status)
            first_error = first_error or status
    if first_error is not None:
        raise first_error


@contextlib.contextmanager
def _opened(folder: int, names: Sequence[str], create: bool = False) -> Iterator[int]:
    """Opens a folder below another one, which stays open."""
    below = descend(os.dup(folder), names, create)
    try:
        yield below
    finally:
        os.close(below)


@contextlib.contextmanager
def _subject(name: str) -> Iterator[None]:
    """Puts the name of the subject in front of the message of an error."""
    try:
        yield
    except Exception as error:
        status = _status(error)
        raise StatusError(status.code, f"{name}: {status.message}") from None


_CODES = {
    errno.EACCES: StatusCode.PERMISSION_DENIED,
    errno.EPERM: StatusCode.PERMISSION_DENIED,
    errno.EROFS: StatusCode.PERMISSION_DENIED,
    errno.ENOSPC: StatusCode.RESOURCE_EXHAUSTED,
    errno.EDQUOT: StatusCode.RESOURCE_EXHAUSTED,
}


def _status(error: Exception) -> StatusError:
    """Returns the status of an error of the system or of tensorstore.

    None of them is NOT_FOUND or DATA_LOSS, which libraries for elastic training take for a lost island.
    """
    text = str(error)
    of_system = error if isinstance(error, OSError) else system_error(error)
    if of_system is not None and of_system.errno is not None:
        code = _CODES.get(of_system.errno, StatusCode.FAILED_PRECONDITION)
        return StatusError(code, os.strerror(of_system.errno))
    if isinstance(error, ValueError) and "tensorstore_spec" in text:
        return StatusError(StatusCode.FAILED_PRECONDITION, text.partition(" [")[0].partition(": ")[2])
    return status_of(error)

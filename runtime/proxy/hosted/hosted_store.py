"""Store of arrays on hosts, which write and read their shards themselves."""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, override

import jax

from pathways.runtime.data.array_files import ArrayFiles
from pathways.runtime.data.host_files import HostSave, RestoredLeaf, arrays_read_by_hosts
from pathways.runtime.proxy.arrays.proxy_array import ProxyArray
from pathways.runtime.proxy.files.file_store import (
    CONTEXT,
    ArrayFolder,
    FileStore,
    ResultOf,
    SavedArrays,
    StoredArray,
    check_shape,
    path_of,
    zarr,
)
from pathways.runtime.proxy.hosted.hosted_values import HostedValue
from pathways.runtime.proxy.hosted.hosts_engine import HostsEngine
from pathways.runtime.resources.threads import start_thread


class HostedSave(SavedArrays):
    """Copies of arrays in the memory of their hosts."""

    def __init__(self, engine: HostsEngine, pairs: Sequence[tuple[StoredArray, ProxyArray]]) -> None:
        self.stored = [stored for stored, _ in pairs]
        arrays = [engine.operand(array.read()[1]).array for _, array in pairs]
        self._save = HostSave(engine.session, arrays, [str(stored) for stored in self.stored])

    @override
    def write(self, folder: int, result_of: ResultOf) -> None:
        # Other processes have other descriptors.
        path = Path(path_of(folder)).readlink()

        def spec(name: str, shape: Sequence[int], dtype: Any, shard: Sequence[int], _: str) -> Any:
            return zarr(str(path / name), shape, dtype.name, shard)

        names = {number: str(number) for number in range(len(self.stored))}
        result_of(_in_thread(lambda: self._save.write(names, path, spec, CONTEXT)))

    @override
    def drop(self) -> None:
        self._save.drop()


class HostedFileStore(FileStore):
    """Store of the arrays of an engine of hosts."""

    def __init__(self, engine: HostsEngine) -> None:
        self._engine = engine

    @override
    def save(self, pairs: Sequence[tuple[StoredArray, ProxyArray]]) -> HostedSave:
        return HostedSave(self._engine, pairs)

    @override
    def read(self, stored: StoredArray, folder: ArrayFolder, result_of: ResultOf) -> HostedValue:
        path = Path(path_of(folder.descriptor)).readlink()
        spec = {"driver": "auto", "kvstore": folder.kvstore(str(path))}
        with ArrayFiles(CONTEXT, result_of) as files:
            check_shape(result_of(files.open(spec, open=True, read=True)).shape, stored)
        location = self._engine.public_location_of(stored.spec)
        kind = jax.core.ShapedArray(stored.shape, stored.spec.dtype)
        leaf = RestoredLeaf(kind, self._engine.session, (location,))
        read = functools.partial(arrays_read_by_hosts, [leaf], [""], path, lambda _: spec, CONTEXT)
        (array,) = result_of(_in_thread(read))
        return HostedValue(array, location, stored.placement.devices)


def _in_thread(work: Callable[[], Any]) -> concurrent.futures.Future[Any]:
    """Starts work in a thread. The work continues after its job has ended; its result is dropped then."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    start_thread(run, "proxy files")
    return future

"""Store of the arrays of this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, override

import numpy as np

from pathways.runtime.data.array_files import ArrayFiles
from pathways.runtime.plan.block_rows import index_of
from pathways.runtime.proxy.arrays.local_engine import LocalEngine
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

_COPY_MEMORY = "pinned_host"


class LocalSave(SavedArrays):
    """Copies of arrays in memory of the host."""

    def __init__(self, engine: LocalEngine, pairs: Sequence[tuple[StoredArray, ProxyArray]]) -> None:
        self._engine = engine
        self.stored = [stored for stored, _ in pairs]
        self._copies = [engine.copy([array], (), _COPY_MEMORY)[0] for _, array in pairs]

    @override
    def write(self, folder: int, result_of: ResultOf) -> None:
        engine = self._engine
        with ArrayFiles(CONTEXT, result_of) as files:
            opened = []
            for number, (stored, array) in enumerate(zip(self.stored, self._copies, strict=True)):
                shard = stored.placement.shard_shape_of(stored.shape) or ()
                dtype = array.read()[0].dtype.name
                spec = zarr(f"{path_of(folder)}/{number}", stored.shape, dtype, shard)
                opened.append(files.open(spec, create=True, open=True))
            for future, stored, array in zip(opened, self.stored, self._copies, strict=True):
                store = result_of(future)
                # Each block once: several devices may have equal shards.
                for bounds, shard in dict(zip(stored.bounds, engine.shards_of(array), strict=True)).items():
                    files.write(store[index_of(bounds)], engine.read(shard))
            files.finish()

    @override
    def drop(self) -> None:
        self._copies.clear()


class LocalFileStore(FileStore):
    """Store of the arrays of an engine of this process."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine

    @override
    def save(self, pairs: Sequence[tuple[StoredArray, ProxyArray]]) -> LocalSave:
        return LocalSave(self._engine, pairs)

    @override
    def read(self, stored: StoredArray, folder: ArrayFolder, result_of: ResultOf) -> Any:
        dtype, bounds = stored.spec.dtype, stored.bounds
        kvstore = folder.kvstore(path_of(folder.descriptor))
        with ArrayFiles(CONTEXT, result_of) as files:
            store = result_of(files.open({"driver": "auto", "kvstore": kvstore}, open=True, read=True))
            check_shape(store.shape, stored)
            futures = {rows: files.read(store[index_of(rows)]) for rows in bounds}
            read = {rows: np.asarray(result_of(future)) for rows, future in futures.items()}
        values = {
            rows: value if value.dtype == dtype else value.astype(dtype) for rows, value in read.items()
        }
        return self._engine.make(stored.spec, [values[rows] for rows in bounds]).value

"""Stores, which write the arrays of clients to files and read them."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pathways.runtime.plan.block_rows import Rows
from pathways.runtime.proxy.arrays.placements import ArrayPlacement, ArraySpec
from pathways.runtime.proxy.arrays.proxy_array import ProxyArray
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError

CONTEXT = {"file_io_concurrency": {"limit": 128}}
_COMPRESSOR = {"id": "zstd", "level": 1}
"""The settings of Orbax."""

ResultOf = Callable[[Any], Any]
"""Function that returns the result of a future, or raises when the job of it has to end."""


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """Array in a folder.

    Attributes:
      name: the name of the array there; slashes separate folders.
      placement: the placement of the array to write or of the one to create.
      dtype: the element type of an array to read; None for one to write.
    """

    folder: str
    name: str
    shape: tuple[int, ...]
    placement: ArrayPlacement
    dtype: np.dtype[Any] | None

    @property
    def spec(self) -> ArraySpec:
        """The type and placement of an array to read."""
        assert self.dtype is not None
        return ArraySpec(self.dtype, self.shape, self.placement)

    @property
    def folder_names(self) -> list[str]:
        """The names of the folders of the array, outermost first; the last one holds its values."""
        return self.name.split("/")

    @property
    def bounds(self) -> list[Rows]:
        """The rows of the shard of each device."""
        return self.placement.rows_of(self.shape)

    def __str__(self) -> str:
        return f"array {self.name[:200]!r} in folder {self.folder[:1000]!r}"


@dataclasses.dataclass(frozen=True)
class ArrayFolder:
    """Folder with a stored array.

    Attributes:
      descriptor: the descriptor of the open folder.
      name: the name of the array in the OCDBT store of the folder; empty where the folder is its own.
    """

    descriptor: int
    name: str = ""

    def kvstore(self, path: str) -> dict[str, str]:
        """Returns tensorstore's specification of the files.

        Args:
          path: a path of the folder.
        """
        if self.name:
            return {"driver": "ocdbt", "base": f"file://{path}/", "path": f"{self.name}/"}
        return {"driver": "file", "path": f"{path}/"}


class SavedArrays(abc.ABC):
    """Copies of arrays that are to be written, in one folder.

    Attributes:
      stored: their names there.
    """

    stored: Sequence[StoredArray]

    @abc.abstractmethod
    def write(self, folder: int, result_of: ResultOf) -> None:
        """Writes them to folders `0`, `1`, ... of an open folder; waits until the files are synchronised."""

    @abc.abstractmethod
    def drop(self) -> None:
        """Frees the copies."""


class FileStore(abc.ABC):
    """Store of arrays in files."""

    @abc.abstractmethod
    def save(self, pairs: Sequence[tuple[StoredArray, ProxyArray]]) -> SavedArrays:
        """Copies arrays: the next request may donate them."""

    @abc.abstractmethod
    def read(self, stored: StoredArray, folder: ArrayFolder, result_of: ResultOf) -> Any:
        """Returns the value of a stored array."""


def path_of(folder: int) -> str:
    """Returns a path of an open folder that stays valid when another folder takes its place."""
    return f"/proc/self/fd/{folder}"


def zarr(path: str, shape: Sequence[int], dtype: str, shard: Sequence[int]) -> dict[str, Any]:
    """Returns tensorstore's specification of a new array, with a chunk for each shard."""
    chunks = [max(size, 1) for size in shard]
    return {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": f"{path}/"},
        "dtype": dtype,
        "metadata": {"shape": [*shape], "chunks": chunks, "compressor": _COMPRESSOR},
        "store_data_equal_to_fill_value": True,
    }


def check_shape(shape: Sequence[int], stored: StoredArray) -> None:
    """Checks the shape of an array in files.

    Raises:
      StatusError: it differs from the array to read.
    """
    if tuple(shape) != stored.shape:
        raise StatusError(StatusCode.INVALID_ARGUMENT, f"has the shape {tuple(shape)}, not {stored.shape}")

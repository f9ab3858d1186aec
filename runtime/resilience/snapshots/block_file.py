"""Files of blocks: data, then a table of the blocks with checksums, then the length of the table.

The table comes last, so that a file can be sent to another host while it is written:

    data of the blocks, each at a multiple of 64 bytes | table (JSON) | its length and checksum, `PWBLOCKS`
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import struct
import zlib
from collections.abc import Collection, Iterable

import ml_dtypes  # noqa: F401 (teaches numpy the names of small floats)
import msgspec
import numpy as np

from pathways.runtime.resilience.snapshots.block_record import StateBlock

ALIGNMENT = 64
"""Alignment of blocks in bytes, which XLA needs to use arrays without a copy."""

_MAGIC = b"PWBLOCKS"
_END = struct.Struct("<QI8s")
_CHUNK_BYTES = 16 << 20
_WORD = np.dtype(np.uint64)
_SUMMED_WORDS = 1 << 13
_BYTES_PER_RECORD = 512
"""Upper bound on the bytes of a record of the table, without the name of its block."""


class SnapshotError(OSError):
    """Error of a snapshot that cannot be written or read; the message names it and the remedy."""


@dataclasses.dataclass(frozen=True)
class _BlockRecord:
    name: str
    dtype: str
    shape: tuple[int, ...]
    index: tuple[tuple[int, int], ...]
    offset: int
    nbytes: int
    checksum: int


def file_bytes(blocks: Collection[StateBlock]) -> int:
    """Returns the max number of bytes of a file of blocks."""
    data = sum(_aligned(block.data.nbytes) for block in blocks)
    # JSON escapes a character to at most 6 bytes.
    return data + sum(_BYTES_PER_RECORD + 6 * len(block.name) for block in blocks) + _END.size


def write_blocks(file: int, blocks: Iterable[StateBlock]) -> None:
    """Writes blocks to an empty file.

    Args:
      file: its file descriptor.

    Raises:
      TypeError: a block has elements without a fixed size.
      OSError: there is no space.
    """
    records: list[_BlockRecord] = []
    offset = 0
    for block in blocks:
        # Waits for a pending array.
        array = np.asarray(block.data)
        dtype = array.dtype
        if dtype.hasobject or dtype.names is not None:
            raise TypeError(f"block {block.name} has elements of type {dtype}, which no file has")
        # In native byte order, because the names of dtypes in the table do not include the order.
        data = np.ascontiguousarray(array.astype(dtype.newbyteorder("="), copy=False))
        view = memoryview(data.reshape(-1).view(np.uint8))
        _write(file, view)
        _write(file, memoryview(bytes(_aligned(len(view)) - len(view))))
        records.append(
            _BlockRecord(block.name, dtype.name, array.shape, block.index, offset, len(view), _checksum(view))
        )
        offset += _aligned(len(view))
    table = msgspec.json.encode(records)
    _write(file, memoryview(table))
    _write(file, memoryview(_END.pack(len(table), zlib.crc32(table), _MAGIC)))


def read_blocks(file: int, path: str, names: Collection[str] | None = None) -> dict[str, StateBlock]:
    """Returns blocks of a file by their names; their data is mapped from the file, not copied.

    Args:
      file: its file descriptor, which may be closed afterwards.
      where: the name of the file in messages.
      names: the blocks to read, whose checksums are verified; all by default.

    Raises:
      SnapshotError: the file is incomplete or corrupt, or lacks a block.
    """
    content, records = _table(file, path)
    blocks: dict[str, StateBlock] = {}
    for name in records if names is None else names:
        if name not in records:
            raise SnapshotError(f"{path} has no block {name}")
        blocks[name] = _read_block(content, records[name], path)
    return blocks


def block_names(file: int, path: str) -> tuple[str, ...]:
    """Returns the names of the blocks of a file.

    Args:
      file: its file descriptor.
      where: the name of the file in messages.

    Raises:
      SnapshotError: the file is incomplete, or its table is corrupt.
    """
    return tuple(_table(file, path)[1])


def _table(file: int, path: str) -> tuple[memoryview, dict[str, _BlockRecord]]:
    """Returns the content of a file without its table, and the table by the names of blocks.

    Raises:
      SnapshotError: the table is corrupt.
    """
    size = os.fstat(file).st_size
    if size < _END.size:
        raise _corrupt(path, f"it has {size} bytes")
    content = memoryview(mmap.mmap(file, 0, prot=mmap.PROT_READ))
    length, checksum, magic = _END.unpack(content[-_END.size :])
    if magic != _MAGIC or length > size - _END.size:
        raise _corrupt(path, "it has no table of blocks")
    table = content[size - _END.size - length : size - _END.size]
    if zlib.crc32(table) != checksum:
        raise _corrupt(path, "wrong checksum of its table of blocks")
    try:
        records = {record.name: record for record in msgspec.json.decode(table, type=list[_BlockRecord])}
    except msgspec.DecodeError as error:
        raise _corrupt(path, str(error)) from None
    return content[: size - _END.size - length], records


def _read_block(content: memoryview, record: _BlockRecord, path: str) -> StateBlock:
    view = content[record.offset : record.offset + record.nbytes]
    if len(view) != record.nbytes or _checksum(view) != record.checksum:
        raise _corrupt(path, f"wrong checksum of block {record.name}")
    data = np.frombuffer(view, np.dtype(record.dtype)).reshape(record.shape)
    return StateBlock(record.name, record.index, data)


def _checksum(data: memoryview) -> int:
    """Returns the CRC of the sums of words of each piece, ten times as fast as a CRC of all bytes."""
    size = len(data) // _WORD.itemsize * _WORD.itemsize
    words = np.frombuffer(data[:size], _WORD)
    sums = np.add.reduceat(words, np.arange(0, len(words), _SUMMED_WORDS)) if size else words
    return zlib.crc32(data[size:], zlib.crc32(sums.tobytes()))


def _corrupt(path: str, problem: str) -> SnapshotError:
    return SnapshotError(f"{path} is corrupt: {problem}")


def _write(file: int, data: memoryview) -> None:
    while data:
        written = os.write(file, data[:_CHUNK_BYTES])
        data = data[written:]


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT

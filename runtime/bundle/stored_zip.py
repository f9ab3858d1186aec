"""Zip files of one layout: uncompressed members in order, then their directory, all with fixed fields.

The bytes of such a file depend on its members alone, and any zip tool can read it. The reader rejects any
other layout: two readers that disagree about the members of a zip are a known attack. PKWARE's APPNOTE.TXT
defines the format, here without any extension.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping

MAX_FILE_BYTES = 2**32 - 1
"""Size of the largest zip without extensions."""

START = b"PK\3\4"
"""The first bytes of a file with members."""

_MAX_MEMBERS = 0xFFFE
_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_NEEDED, _FLAGS, _STORED = 20, 0, 0
_TIME, _DATE = 0, 1 << 5 | 1  # 1980-01-01, the earliest date of a zip
_UNIX = 3 << 8


class StoredZipError(ValueError):
    """Error of a file that is not a zip of this layout, or of members that do not fit into one."""


def _local_header(name: bytes, crc: int, size: int) -> bytes:
    return _LOCAL.pack(START, _NEEDED, _FLAGS, _STORED, _TIME, _DATE, crc, size, size, len(name), 0) + name


def _central_header(name: bytes, crc: int, size: int, offset: int) -> bytes:
    mode = 0o100644 << 16
    return (
        _CENTRAL.pack(
            b"PK\1\2",
            _UNIX | _NEEDED,
            _NEEDED,
            _FLAGS,
            _STORED,
            _TIME,
            _DATE,
            crc,
            size,
            size,
            len(name),
            0,
            0,
            0,
            0,
            mode,
            offset,
        )
        + name
    )


def pack(members: Mapping[str, bytes]) -> list[bytes]:
    """Returns the pieces of a zip file with these members, whose names are ASCII.

    Raises:
      StoredZipError: they are too many, or too large together.
    """
    pieces: list[bytes] = []
    central: list[bytes] = []
    offset = 0
    for name, data in members.items():
        encoded, crc = name.encode("ascii"), zlib.crc32(data)
        if offset + _LOCAL.size + len(encoded) + len(data) > MAX_FILE_BYTES or len(members) > _MAX_MEMBERS:
            raise StoredZipError("holds less than 4 GiB and 65535 members")
        header = _local_header(encoded, crc, len(data))
        central.append(_central_header(encoded, crc, len(data), offset))
        pieces += [header, data]
        offset += len(header) + len(data)
    size = sum(map(len, central))
    if offset + size + _END.size > MAX_FILE_BYTES:
        raise StoredZipError("holds less than 4 GiB and 65535 members")
    return [*pieces, *central, _end(len(members), size, offset)]


def unpack(data: memoryview, check: Callable[[str, int], None]) -> dict[str, memoryview]:
    """Returns the members of a zip that `pack` has written, without a copy.

    Args:
      data: the file.
      check: called with the name and size of each member before anything else of it is read; may raise.

    Raises:
      StoredZipError: the file has another layout, or is damaged.
    """
    if len(data) < _END.size or data[-_END.size :][:4] != b"PK\5\6":
        raise StoredZipError("truncated, or has trailing data")
    _, _, _, _, count, size, position, _ = _END.unpack(data[-_END.size :])
    first, end = position, len(data) - _END.size
    if position + size != end:
        raise StoredZipError("damaged: its directory is not where its end says")
    members: dict[str, memoryview] = {}
    offset = 0
    for _ in range(count):
        if end - position < _CENTRAL.size:
            raise StoredZipError("damaged: its directory is too short")
        fields = _CENTRAL.unpack(data[position : position + _CENTRAL.size])
        flags, method, crc, size, length = fields[3], fields[4], fields[7], fields[9], fields[10]
        encoded = bytes(data[position + _CENTRAL.size : position + _CENTRAL.size + length])
        name = encoded.decode("ascii", "replace")
        check(name, size)
        if name in members:
            raise StoredZipError(f"member {name} occurs twice")
        if method != _STORED or flags != _FLAGS:
            raise StoredZipError(f"member {name} is compressed or encrypted")
        start = offset + _LOCAL.size + length
        if offset + len(encoded) + size > first or start + size > first:
            raise StoredZipError(f"member {name} reaches into the directory")
        # Comparing whole headers, rather than fields, leaves no field unchecked.
        header = _central_header(encoded, crc, size, offset)
        if data[position : position + len(header)] != header or data[offset:start] != _local_header(
            encoded, crc, size
        ):
            raise StoredZipError(f"the header of member {name} is malformed")
        members[name] = data[start : start + size]
        if zlib.crc32(members[name]) != crc:
            raise StoredZipError(f"member {name} is damaged")
        position += len(header)
        offset = start + size
    if offset != first or position != end or data[end:] != _end(count, end - first, first):
        raise StoredZipError("damaged: it has bytes outside its members")
    return members


def _end(count: int, size: int, offset: int) -> bytes:
    return _END.pack(b"PK\5\6", 0, 0, count, count, size, offset, 0)

"""Message classes of the protocol, from the descriptors in the installed jaxlib, and its versions.

jaxlib contains the serialised `FileDescriptorProto` of every `.proto` file that it uses, so that the messages
always match its release.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import mmap
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from pathways.dialect.errors import PathwaysError
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError
from pathways.runtime.xla import code_store, pjrt

ROOTS = (
    "xla/python/ifrt_proxy/common/grpc_ifrt_service.proto",
    "xla/python/ifrt_proxy/common/ifrt_service.proto",
    "xla/python/ifrt_proxy/common/array_util.proto",
    "xla/python/ifrt/sharding_serdes.proto",
    "xla/python/ifrt/layout_serdes.proto",
    "xla/python/ifrt/ir/ifrt_ir_program.proto",
    "xla/python/ifrt/ir/ifrt_ir_compile_options.proto",
    "xla/python/pjrt_ifrt/pjrt_layout_serdes.proto",
    "xla/python/pjrt_ifrt/xla_sharding.proto",
    "xla/python/pjrt_ifrt/xla_compiler.proto",
)
"""Files with the messages that the server reads and writes; they import the others."""

_NAME = re.compile(rb"\x0a([\x05-\x7f])([\w/.-]+?\.proto)(?=[\x12\x1a\x22\x2a\x42\x3a\x62])")
"""Start of a serialised descriptor: field 1, a length, the name of the file, the tag of another field."""

_LAST_FIELD = 14
"""Largest field number of a `FileDescriptorProto`."""


class DescriptorError(PathwaysError):
    """Error of an installed jaxlib without descriptors of the protocol."""


@dataclasses.dataclass(frozen=True)
class VersionRange:
    """Range of versions, of the protocol's requests or of its serialised values."""

    name: str
    first: int
    last: int

    def choose(self, first: int, last: int) -> int:
        """Returns the newest version that a client with versions `first` to `last` also speaks.

        Raises:
          StatusError: the ranges do not overlap.
        """
        if first <= last and first <= self.last and last >= self.first:
            return min(last, self.last)
        age = "old" if last < self.first else "new"
        raise StatusError(
            StatusCode.FAILED_PRECONDITION,
            f"the jaxlib of this client is too {age} for the server: it speaks versions {first} to {last} of "
            f"the {self.name}, the server {self.first} to {self.last}; use a jaxlib of the server's release",
        )


PROTOCOL = VersionRange("IFRT proxy protocol", 16, 25)
SERIALIZATION = VersionRange("IFRT serialization", 0, 6)


class Messages:
    """Message classes by their full names, such as `xla.ifrt.proxy.IfrtRequest`."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._pool = descriptor_pool.DescriptorPool()
        for data in files.values():
            self._pool.AddSerializedFile(data)
        self._classes: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._classes:
            self._classes[name] = message_factory.GetMessageClass(self._pool.FindMessageTypeByName(name))
        return self._classes[name]

    def parse(self, name: str, data: bytes | bytearray | memoryview) -> Any:
        """Parses a message.

        Raises:
          ValueError: the data is not such a message.
        """
        try:
            return self[name].FromString(bytes(data))
        except message.DecodeError:
            raise ValueError(f"invalid message of {len(data)} bytes; expected {name}") from None


@functools.cache
def messages() -> Messages:
    """Returns the messages of the installed jaxlib, also for later processes in the store of compiled code.

    Raises:
      DescriptorError: jaxlib has no descriptors.
    """
    return Messages(find_stored(pjrt.shared_library(), code_store.from_environment()))


def find_stored(library: Path, store: code_store.CodeStore | None) -> dict[str, bytes]:
    """Returns the result of `find` for `ROOTS`, from a store if an earlier process has stored it.

    Raises:
      DescriptorError: a descriptor is not in the library, or the library does not exist.
    """
    try:
        status = library.stat()
    except FileNotFoundError:
        raise DescriptorError(
            f"{library} does not exist: this release of jaxlib is not supported by pw-proxy"
        ) from None
    subject = f"descriptors {library} {status.st_size} {status.st_mtime_ns} {ROOTS}"
    key = hashlib.sha256(subject.encode()).hexdigest()
    stored = None if store is None else store.read(key)
    if stored is not None:
        parsed = descriptor_pb2.FileDescriptorSet.FromString(stored).file
        return {file.name: file.SerializeToString() for file in parsed}
    files = find(library, ROOTS)
    if store is not None:
        parsed = [descriptor_pb2.FileDescriptorProto.FromString(data) for data in files.values()]
        store.write(key, descriptor_pb2.FileDescriptorSet(file=parsed).SerializeToString())
    return files


def find(library: Path, roots: Sequence[str]) -> dict[str, bytes]:
    """Returns the serialised descriptors of `roots` and of all their imports, each after its own imports.

    Args:
      roots: names of `.proto` files.

    Raises:
      DescriptorError: one of them is not in the library.
    """
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        descriptors = dict(_scan(data))
    ordered: dict[str, bytes] = {}

    def add(name: str) -> None:
        if name in ordered:
            return
        if name not in descriptors:
            raise DescriptorError(
                f"{library} has no descriptor of {name}: this release of jaxlib is not supported by pw-proxy"
            )
        for imported in descriptors[name].dependency:
            add(imported)
        ordered[name] = descriptors[name].SerializeToString()

    for root in roots:
        add(root)
    return ordered


def _scan(data: mmap.mmap) -> Iterator[tuple[str, Any]]:
    for match in _NAME.finditer(data):
        if len(match[2]) != match[1][0]:
            continue
        try:
            parsed = descriptor_pb2.FileDescriptorProto.FromString(
                data[match.start() : _end(data, match.start())]
            )
        except message.DecodeError:
            continue
        yield parsed.name, parsed


def _end(data: mmap.mmap, start: int) -> int:
    """Returns the end of a descriptor: the first position that does not start a field of one."""
    end = start
    while True:
        tag, position = _varint(data, end)
        field, kind = tag >> 3, tag & 7
        if not 1 <= field <= _LAST_FIELD or kind not in (0, 2):
            return end
        value, position = _varint(data, position)
        position += value if kind == 2 else 0
        if position > len(data):
            return end
        end = position


def _varint(data: mmap.mmap, position: int) -> tuple[int, int]:
    """Reads a number in protobuf's variable-length form; 0 at the end of the data."""
    value = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position
    return 0, position

"""The file format of bundles: a zip of stored members, described in docs/bundle.md.

Reading checks everything that can be checked without MLIR: the layout of the zip, the names, sizes and
digests of the members, and the manifest. Nothing is unpickled or evaluated. Never imports jax or jaxlib.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import ml_dtypes  # noqa: F401 (teaches numpy the names of small floats)
import msgspec
import numpy as np

from pathways.runtime.bundle import stored_zip
from pathways.runtime.bundle.manifest import (
    INDEX,
    MANIFEST,
    BundleError,
    Code,
    CodeIndex,
    Manifest,
    read_index,
    read_manifest,
    write_record,
)
from pathways.runtime.bundle.stored_zip import StoredZipError

PROGRAM = "program.mlir"

_MAX_JSON_BYTES = 16 * 2**20
_MEMBER = re.compile(
    r"manifest\.json|program\.mlir|executables/index\.json|"
    r"(?:computations/[0-9]{4,5}\.stablehlo|(?:constants|executables)/[0-9]{4,5}\.bin)"
)


@dataclasses.dataclass(frozen=True, eq=False)
class Bundle:
    """Bundle in memory, checked as far as is possible without MLIR.

    Attributes:
      path: the file that it was read from.
      digest: the SHA-256 of the manifest's member. That holds the digests of the others, so this one
        identifies the whole program.
      members: the contents of all members by name.
      executables: the entry in the index, and the contents, of each serialised executable.
    """

    path: str
    manifest: Manifest
    digest: str
    members: Mapping[str, memoryview]
    executables: tuple[tuple[Code, memoryview], ...]

    @property
    def program(self) -> memoryview:
        """The scheduled program as MLIR text."""
        return self.members[PROGRAM]

    def without_code(self) -> bytes:
        """Returns the bytes of the bundle without its serialised executables."""
        names = [name for name in self.members if not name.startswith("executables/")]
        members = {name: bytes(self.members[name]) for name in names}
        return b"".join(stored_zip.pack(members))

    def artifacts(self) -> dict[str, memoryview]:
        """Returns each computation as a StableHLO portable artifact, by name."""
        return {
            computation.name: self.members[computation_member(n)]
            for n, computation in enumerate(self.manifest.computations)
        }

    def constants(self) -> dict[str, np.ndarray]:
        """Returns each constant by name, as an array over the bytes that were read."""
        return {
            constant.name: np.frombuffer(self.members[constant_member(n)], np.dtype(constant.dtype)).reshape(
                constant.shape
            )
            for n, constant in enumerate(self.manifest.constants)
        }


def computation_member(number: int) -> str:
    """Returns the name of the member that holds a computation."""
    return f"computations/{number:04}.stablehlo"


def constant_member(number: int) -> str:
    """Returns the name of the member that holds a constant."""
    return f"constants/{number:04}.bin"


def code_member(number: int) -> str:
    """Returns the name of the member that holds an executable."""
    return f"executables/{number:04}.bin"


def is_artifact(data: bytes | memoryview) -> bool:
    """Returns whether bytes start like a portable artifact: MLIR bytecode with StableHLO as its producer."""
    # Byte 4 between the two is the version of the bytecode format.
    return bytes(data[:4]) == b"ML\xefR" and bytes(data[5:16]) == b"StableHLO_v"


def write(
    path: str | os.PathLike[str],
    manifest: Manifest,
    program: bytes,
    artifacts: Sequence[bytes],
    constants: Sequence[bytes],
    executables: Sequence[tuple[Code, bytes]] = (),
) -> None:
    """Writes a bundle atomically: the file is either complete or unchanged.

    Raises:
      BundleError: the format cannot hold the program, such as one of more than 4 GiB.
      OSError: the file cannot be written.
    """
    data = pack(manifest, program, artifacts, constants, executables)
    # A bundle that no reader accepts must not be written.
    parse(b"".join(data), str(path))
    target = Path(path).resolve()  # Replaces the file behind a symbolic link, not the link.
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("xb") as file:
            file.writelines(data)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def pack(
    manifest: Manifest,
    program: bytes,
    artifacts: Sequence[bytes],
    constants: Sequence[bytes],
    executables: Sequence[tuple[Code, bytes]] = (),
) -> list[bytes]:
    """Returns the pieces of the bytes of a bundle.

    Raises:
      BundleError: the format cannot hold the program, such as one of more than 4 GiB.
    """
    members = {PROGRAM: program}
    members |= {computation_member(n): data for n, data in enumerate(artifacts)}
    members |= {constant_member(n): data for n, data in enumerate(constants)}
    digests = {name: sha256(data) for name, data in members.items()}
    described = write_record(msgspec.structs.replace(manifest, digests=digests))
    if executables:
        members[INDEX] = write_record(CodeIndex(sha256(described), tuple(code for code, _ in executables)))
        members |= {code_member(n): data for n, (_, data) in enumerate(executables)}
    members = {MANIFEST: described, **members}
    try:
        return stored_zip.pack(members)
    except StoredZipError as error:
        advice = "pass large arrays as arguments instead of closing over them"
        raise BundleError(f"a bundle {error}; {advice}") from None


def read(path: str | os.PathLike[str]) -> Bundle:
    """Reads a bundle and checks it.

    Raises:
      BundleError: the file cannot be read, or is not a bundle of this version.
    """
    name = str(path)
    try:
        file = Path(path)
        if not file.is_file():
            raise BundleError(f"{name}: {'no such file' if not file.exists() else 'not a file'}")
        with file.open("rb") as opened:
            # Any other file may be of any size: read all of it only if it starts like a bundle.
            data = opened.read(len(stored_zip.START))
            if data == stored_zip.START:
                opened.seek(0)
                data = opened.read(stored_zip.MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BundleError(f"{name}: {error.strerror or error}") from None
    except MemoryError:
        raise BundleError(f"{name}: does not fit into memory") from None
    return parse(data, name)


def parse(data: bytes, name: str) -> Bundle:
    """Reads a bundle from its bytes.

    Args:
      data: the bytes.
      name: the name of the file, for messages.

    Raises:
      BundleError: it is not a bundle of this version.
    """
    try:
        members = _members(memoryview(data))
        return _bundle(members, name)
    except (BundleError, StoredZipError) as error:
        raise BundleError(f"{name}: {error}") from None


def _bundle(members: Mapping[str, memoryview], name: str) -> Bundle:
    if MANIFEST not in members:
        raise BundleError(f"not a bundle: it has no {MANIFEST}")
    manifest = read_manifest(members[MANIFEST])
    expected = {PROGRAM} | {computation_member(n) for n in range(len(manifest.computations))}
    expected |= {constant_member(n) for n in range(len(manifest.constants))}
    _check_digests(manifest.digests, expected, members)
    for n, computation in enumerate(manifest.computations):
        if not is_artifact(members[computation_member(n)]):
            raise BundleError(f"computation '{computation.name}' is not a portable artifact")
    for n, constant in enumerate(manifest.constants):
        size = math.prod(constant.shape) * np.dtype(constant.dtype).itemsize
        if len(members[constant_member(n)]) != size:
            raise BundleError(
                f"constant '{constant.name}' has {len(members[constant_member(n)])} bytes, but its shape and "
                f"dtype need {size}"
            )
    digest = sha256(members[MANIFEST])
    executables = _executables(members, manifest, digest)
    expected |= {MANIFEST} | ({INDEX} if INDEX in members else set())
    expected |= {code_member(n) for n in range(len(executables))}
    for member in members:
        if member not in expected:
            raise BundleError(f"unexpected member {member}")
    return Bundle(name, manifest, digest, members, executables)


def _check_digests(digests: Mapping[str, str], expected: set[str], members: Mapping[str, memoryview]) -> None:
    if digests.keys() != expected:
        raise BundleError(f"{MANIFEST}: digests are not those of the program, its computations and constants")
    for member in sorted(expected):
        if member not in members:
            raise BundleError(f"member {member} is missing")
        if sha256(members[member]) != digests[member]:
            raise BundleError(f"member {member} is damaged: its digest is not the one in {MANIFEST}")


def _executables(
    members: Mapping[str, memoryview], manifest: Manifest, digest: str
) -> tuple[tuple[Code, memoryview], ...]:
    if INDEX not in members:
        return ()
    index = read_index(members[INDEX])
    if index.manifest != digest:
        raise BundleError("its executables belong to another bundle")
    names = {computation.name for computation in manifest.computations}
    executables = []
    for n, code in enumerate(index.executables):
        member = code_member(n)
        if code.computation not in names:
            raise BundleError(f"{INDEX}: no computation '{code.computation}'")
        if member not in members:
            raise BundleError(f"member {member} is missing")
        if sha256(members[member]) != code.digest:
            raise BundleError(f"member {member} is damaged: its digest is not the one in {INDEX}")
        executables.append((code, members[member]))
    return tuple(executables)


def sha256(data: bytes | memoryview) -> str:
    """Returns the digest that bundles use, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def _members(data: memoryview) -> dict[str, memoryview]:
    if len(data) > stored_zip.MAX_FILE_BYTES:
        raise BundleError("not a bundle: it has 4 GiB or more")
    if data[: len(stored_zip.START)] != stored_zip.START:
        raise BundleError(
            "not a bundle: it does not start like one; "
            "pw-compile -o FILE.pwb and compiled.save(path) write bundles"
        )
    return stored_zip.unpack(data, _check_member)


def _check_member(name: str, size: int) -> None:
    if not _MEMBER.fullmatch(name):
        raise BundleError(f"unexpected member {name[:100]!r}")
    if name in (MANIFEST, INDEX) and size > _MAX_JSON_BYTES:
        raise BundleError(f"member {name} is too large")

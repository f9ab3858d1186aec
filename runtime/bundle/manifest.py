"""The JSON members of bundles: the manifest and the index of executables, described in docs/bundle.md.

Every entry is checked for its type and range when it is read. Never imports jax or jaxlib.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pathways.dialect.attributes.names import MAX_DEVICES, MAX_ELEMENTS
from pathways.dialect.errors import PathwaysError
from pathways.dialect.plain_data import Count, PlainDataError, Symbol, Text, parse_json, read_record, shown
from pathways.runtime.bundle import trees
from pathways.runtime.plan.plan import ArrayType, SliceSpec

VERSION = 1
"""Version of the format; a reader rejects versions that it does not know."""

VERSION_OF_SUB_PROGRAMS = 2
"""Version of a bundle with sub-programs, which readers of the first version cannot read."""

MANIFEST = "manifest.json"
INDEX = "executables/index.json"

_KEY_WORDS = {"key<threefry2x32>": 2, "key<rbg>": 4, "key<unsafe_rbg>": 4}
_DTYPE = (
    r"bool|u?int(2|4|8|16|32|64)|float(16|32|64)|bfloat16|complex(64|128)|float4_e2m1fn|"
    r"float8_(e3m4|e4m3|e8m0fnu|e4m3b11fnuz|e4m3fn|e4m3fnuz|e5m2|e5m2fnuz)"
)

Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z", description="a SHA-256 in hexadecimal digits")]
Dtype = Annotated[str, Meta(pattern=rf"\A({_DTYPE})\Z", description="the name of a dtype")]
LeafDtype = Annotated[
    str, Meta(pattern=rf"\A({_DTYPE}|{'|'.join(_KEY_WORDS)})\Z", description="the name of a dtype")
]
Size = Annotated[int, Meta(ge=0, le=MAX_ELEMENTS, description="a whole number of at least 0")]
Shape = Annotated[tuple[Size, ...], Meta(max_length=64, description="a shape of at most 64 dimensions")]


class BundleError(PathwaysError, ValueError):
    """Error of a file that is not a bundle, or that this process cannot or must not use."""

    # Tracebacks show the public name.
    __module__ = "pathways"


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the records in the JSON members of bundles; fields are keys."""


class Leaf(Record, frozen=True, omit_defaults=True):
    """Array that a program accepts or returns.

    Attributes:
      name: its name, as `trees` forms it.
      shape: its global shape.
      dtype: numpy's name of its dtype, or `key<threefry2x32>` for typed PRNG keys.
      weak_type: whether its type is weak in JAX.
      slices: the slices that hold it; none for an argument that nothing reads.
      donated: whether the program consumes it.
      memory_kind: its memory kind, as JAX names it; absent for the default memory of devices.
    """

    name: Text
    shape: Shape
    dtype: LeafDtype
    weak_type: bool
    slices: tuple[Symbol, ...]
    donated: bool
    memory_kind: Text | None = None

    @property
    def buffer(self) -> ArrayType:
        """The type of its buffers; of typed PRNG keys, the type of their bits."""
        if self.dtype in _KEY_WORDS:
            return ArrayType((*self.shape, _KEY_WORDS[self.dtype]), "uint32")
        return ArrayType(self.shape, self.dtype)


class Root(Record, frozen=True):
    """Positional or named argument, or the result: its name, and its tree of leaf numbers, as JSON."""

    name: Text
    json: Any = msgspec.field(name="tree")

    def __post_init__(self) -> None:
        try:
            trees.from_json(self.json)
        except trees.TreeError as error:
            raise BundleError(f"the tree {error}") from None

    @classmethod
    def of(cls, name: str, tree: trees.Tree) -> Root:
        """Returns the root of a tree."""
        return cls(name, trees.to_json(tree))

    @property
    def tree(self) -> trees.Tree:
        """The tree of leaf numbers."""
        return trees.from_json(self.json)


class ListedComputation(Record, frozen=True):
    """Computation; its member holds it as a StableHLO portable artifact.

    Attributes:
      local: whether each device of a slice runs it by itself, on its own shards.
      effects: whether it has side effects.
    """

    name: Text
    local: bool
    effects: bool


class Constant(Record, frozen=True):
    """Array that the program closes over; its member holds the elements, in C order and little-endian."""

    name: Text
    shape: Shape
    dtype: Dtype


class Manifest(Record, frozen=True):
    """Manifest of a bundle: the description of its program and the digests of its members.

    Attributes:
      platform: JAX's name of the platform that it was lowered for, such as `cuda`.
      versions: the versions of the packages that compiled it.
      slices: the slices that it needs, in the order of the program.
      named: the keyword arguments.
      computations: the computations, in the order of their members.
      custom_calls: the custom calls of the computations, in alphabetical order.
      constants: the constants, in the order of their members.
      digests: the SHA-256 of each member, except the manifest and executables.
    """

    name: Text
    platform: Text
    versions: dict[Text, Text]
    slices: tuple[SliceSpec, ...]
    positional: tuple[Root, ...]
    named: tuple[Root, ...]
    arguments: tuple[Leaf, ...]
    result: Root
    results: tuple[Leaf, ...]
    computations: tuple[ListedComputation, ...]
    custom_calls: tuple[Text, ...]
    constants: tuple[Constant, ...]
    digests: dict[Text, Digest] = {}
    version: int = VERSION
    format: Literal["pathways-bundle"] = "pathways-bundle"


class Code(Record, frozen=True):
    """Entry of a serialised executable in the index.

    Attributes:
      devices: the number of devices that it runs on.
      target: a digest of everything else that the code depends on: see `pjrt.code_target`.
      digest: its SHA-256.
    """

    computation: Text
    devices: Count
    target: Digest
    digest: Digest


class CodeIndex(Record, frozen=True):
    """Index of the executables of a bundle, in the order of their members, and the digest of its manifest."""

    manifest: Digest
    executables: tuple[Code, ...]


def write_record(record: Record) -> bytes:
    """Returns the contents of the member for the manifest or the index."""
    value = msgspec.to_builtins(record)
    return json.dumps(value, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"


def read_index(data: memoryview) -> CodeIndex:
    """Reads the index of executables.

    Raises:
      BundleError: it is not a valid index.
    """
    return _read(_parse(data, INDEX), CodeIndex, INDEX)


def read_manifest(data: memoryview) -> Manifest:
    """Reads the manifest of a bundle.

    Raises:
      BundleError: it is not a valid manifest of this version.
    """
    value = _parse(data, MANIFEST)
    if not isinstance(value, dict) or value.get("format") != "pathways-bundle":
        raise BundleError(f"not a bundle: {MANIFEST} does not say that it is one")
    version = value.get("version")
    if type(version) is not int:
        raise BundleError(f"not a bundle: {MANIFEST} does not say its version")
    if version not in (VERSION, VERSION_OF_SUB_PROGRAMS):
        raise BundleError(
            f"its format is version {version}, and this reader knows {VERSION} and {VERSION_OF_SUB_PROGRAMS}"
        )
    manifest = _read(value, Manifest, MANIFEST)
    for kind, names in (
        ("slice", [slice.name for slice in manifest.slices]),
        ("computation", [computation.name for computation in manifest.computations]),
        ("constant", [constant.name for constant in manifest.constants]),
        ("argument", [leaf.name for leaf in manifest.arguments]),
        ("result", [leaf.name for leaf in manifest.results]),
    ):
        if len(set(names)) < len(names):
            raise BundleError(f"{MANIFEST}: a name of a {kind} occurs twice")
    arrays: list[Leaf | Constant] = [*manifest.arguments, *manifest.results, *manifest.constants]
    for array in arrays:
        # A size of 0 does not exempt the others.
        if math.prod(max(size, 1) for size in array.shape) > MAX_ELEMENTS:
            raise BundleError(f"{MANIFEST}: '{array.name}': expected at most 2^48 elements")
    for slice in manifest.slices:
        if not slice.shape or not len(slice.shape) == len(slice.axis_names) == len(set(slice.axis_names)):
            raise BundleError(
                f"{MANIFEST}: slice {slice.name}: expected one distinct axis name for each size"
            )
        if slice.size > MAX_DEVICES:
            raise BundleError(f"{MANIFEST}: slice {slice.name}: expected at most {MAX_DEVICES} devices")
    if list(manifest.custom_calls) != sorted(set(manifest.custom_calls)):
        raise BundleError(f"{MANIFEST}: custom_calls: expected different names in alphabetical order")
    slice_names = {slice.name for slice in manifest.slices}
    for leaf in (*manifest.arguments, *manifest.results):
        if not slice_names.issuperset(leaf.slices) or len(set(leaf.slices)) < len(leaf.slices):
            raise BundleError(f"{MANIFEST}: '{leaf.name}' is on slices that do not exist, or on one twice")
    _check_leaves((*manifest.positional, *manifest.named), manifest.arguments, "arguments")
    _check_leaves((manifest.result,), manifest.results, "results")
    return manifest


def _check_leaves(roots: Sequence[Root], leaves: Sequence[Leaf], kind: str) -> None:
    named = [pair for root in roots for pair in trees.leaf_names(root.name, root.tree)]
    if named != [(leaf.name, n) for n, leaf in enumerate(leaves)]:
        raise BundleError(f"{MANIFEST}: the trees of the {kind} do not have the leaves that are listed")


def _parse(data: memoryview, member: str) -> Any:
    try:
        return parse_json(data)
    except PlainDataError as error:
        raise BundleError(f"{member}: {error}") from None


def _read[T](value: Any, kind: type[T], member: str) -> T:
    try:
        record = read_record(value, kind)
        _check_printable(value)
    except PlainDataError as error:
        raise BundleError(f"{member}: {error}") from None
    return record


def _check_printable(value: Any, place: str = "") -> None:
    """Checks all texts except keys of trees, which messages quote."""
    match value:
        case str() if not value.isprintable():
            raise PlainDataError(f"{place} = {shown(value)}: expected a printable string")
        case list():
            for n, item in enumerate(value):
                _check_printable(item, f"{place}[{n}]")
        case dict():
            for key, item in value.items():
                _check_printable(key, place)
                if key != "tree":
                    _check_printable(item, f"{place}.{key}" if place else key)

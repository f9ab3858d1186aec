"""The JSON members of bundles: the manifest and the index of executables, described in docs/bundle.md.

Every entry is checked for its type and range when it is read. Never imports jax or jaxlib.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes  # noqa: F401 (teaches numpy the names of small floats)

from pathways.dialect.attributes.names import MOST_DEVICES, MOST_ELEMENTS
from pathways.dialect.errors import PathwaysError
from pathways.runtime.bundle import trees
from pathways.runtime.plan.plan import ArrayType

VERSION = 1
"""The version of the format; a reader refuses those that it does not know."""

VERSION_OF_PARTS = 2
"""That of a bundle whose program has parts, which readers of the first version know nothing of."""

FORMAT = "pathways-bundle"
MANIFEST = "manifest.json"
INDEX = "executables/index.json"

_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY_WORDS = {"key<threefry2x32>": 2, "key<rbg>": 4, "key<unsafe_rbg>": 4}
_DIGEST = re.compile(r"[0-9a-f]{64}")
_DTYPES = (
    frozenset(
        f"{kind}{bits}"
        for kind, widths in (
            ("int", (2, 4, 8, 16, 32, 64)),
            ("uint", (2, 4, 8, 16, 32, 64)),
            ("float", (16, 32, 64)),
            ("complex", (64, 128)),
            ("bfloat", (16,)),
        )
        for bits in widths
    )
    | {"bool", "float8_e3m4", "float8_e4m3", "float8_e8m0fnu", "float4_e2m1fn"}
    | {f"float8_{kind}" for kind in ("e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")}
)


class BundleError(PathwaysError, ValueError):
    """A file that is no bundle, or one that this process cannot or must not use; says why in one line."""

    # As which tracebacks name it.
    __module__ = "pathways"


@dataclasses.dataclass(frozen=True)
class Slice:
    """A virtual slice: its name in the program, its mesh, and where it may lie."""

    name: str
    axis_names: tuple[str, ...]
    shape: tuple[int, ...]
    island: str | None = None
    overlap: bool = False


@dataclasses.dataclass(frozen=True)
class Leaf:
    """An array that a program takes or returns.

    Attributes:
      name: its name, as `trees` forms it.
      shape: its global shape.
      dtype: numpy's name of its dtype, or `key<threefry2x32>` for typed PRNG keys.
      weak_type: whether JAX counts its type as weak.
      slices: the slices that it lives on; none for an argument that nothing reads.
      donated: whether the program consumes it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    weak_type: bool
    slices: tuple[str, ...]
    donated: bool = False

    @property
    def buffer(self) -> ArrayType:
        """The type of its buffers: for typed PRNG keys that of their bits."""
        if self.dtype in _KEY_WORDS:
            return ArrayType((*self.shape, _KEY_WORDS[self.dtype]), "uint32")
        return ArrayType(self.shape, self.dtype)


@dataclasses.dataclass(frozen=True)
class Root:
    """A positional or named argument, or the result: its name, and its tree of numbers of leaves."""

    name: str
    tree: trees.Tree


@dataclasses.dataclass(frozen=True)
class ListedComputation:
    """A computation; its member holds it as a StableHLO portable artifact.

    Attributes:
      name: its name in the program.
      local: whether each device of a slice runs it by itself, on its shards.
      effects: whether it has side effects.
    """

    name: str
    local: bool = False
    effects: bool = False


@dataclasses.dataclass(frozen=True)
class Constant:
    """An array that the program closes over; its member holds the elements, in C order and little-endian."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a bundle says about its program.

    Attributes:
      name: the name of the program.
      platform: what JAX calls the platform that it was lowered for, such as `cuda`.
      versions: of the packages that made it.
      slices: the slices that it needs, in the order of the program.
      positional: the positional arguments.
      named: the arguments that are given by name.
      arguments: the leaves of all arguments.
      result: the result.
      results: its leaves.
      computations: the computations, in the order of their members.
      custom_calls: what the computations call outside of XLA, in alphabetical order.
      constants: the constants, in the order of their members.
      digests: the SHA-256 of each member, but for the manifest and executables.
      version: that of the format.
    """

    name: str
    platform: str
    versions: Mapping[str, str]
    slices: tuple[Slice, ...]
    positional: tuple[Root, ...]
    named: tuple[Root, ...]
    arguments: tuple[Leaf, ...]
    result: Root
    results: tuple[Leaf, ...]
    computations: tuple[ListedComputation, ...]
    custom_calls: tuple[str, ...]
    constants: tuple[Constant, ...]
    digests: Mapping[str, str] = dataclasses.field(default_factory=dict)
    version: int = VERSION


@dataclasses.dataclass(frozen=True)
class Code:
    """A serialised executable.

    Attributes:
      computation: the name of the computation.
      devices: the number of devices that it runs on.
      target: a digest of all that the code depends on besides the computation: see `pjrt.code_target`.
      digest: its SHA-256.
    """

    computation: str
    devices: int
    target: str
    digest: str


def write_manifest(manifest: Manifest) -> bytes:
    """The manifest as the contents of its member."""
    return _json(_manifest_to_json(manifest))


def read_manifest(data: memoryview) -> Manifest:
    """Reads the manifest of a bundle.

    Raises:
      BundleError: it is none of this version.
    """
    return _manifest_from_json(_read_json(data, MANIFEST))


def write_index(manifest: str, codes: Sequence[Code]) -> bytes:
    """The index of executables as the contents of its member; `manifest` is the digest of the manifest."""
    return _json({"manifest": manifest, "executables": [dataclasses.asdict(code) for code in codes]})


def read_index(data: memoryview) -> tuple[str, tuple[Code, ...]]:
    """The digest of the manifest that an index of executables belongs to, and what it says of each.

    Raises:
      BundleError: it is no index.
    """
    index = _INDEX(_read_json(data, INDEX), INDEX)
    return index["manifest"], index["executables"]


FieldParser = Callable[[Any, str], Any]
"""Checks a value of JSON; takes it and its place, for messages."""


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"


def _read_json(data: memoryview, member: str) -> Any:
    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            raise ValueError("a key occurs twice in one object")
        return members

    def no_constant(text: str) -> Any:
        raise ValueError(f"{text} is not a number")

    try:
        return json.loads(bytes(data).decode(), object_pairs_hook=no_duplicates, parse_constant=no_constant)
    except RecursionError:
        raise BundleError(f"{member}: nested too deeply") from None
    except ValueError as error:
        raise BundleError(f"{member}: not JSON: {error}") from None


def _fail(where: str, expected: str) -> Any:
    raise BundleError(f"{MANIFEST}: {where}: expected {expected}")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= 1000:
        _fail(where, "a printable string")
    return value


def _matching(pattern: re.Pattern[str], what: str) -> FieldParser:
    def parse(value: Any, where: str) -> str:
        return value if isinstance(value, str) and pattern.fullmatch(value) else _fail(where, what)

    return parse


def _flag(value: Any, where: str) -> bool:
    return value if isinstance(value, bool) else _fail(where, "true or false")


def _whole(smallest: int) -> FieldParser:
    def parse(value: Any, where: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= MOST_ELEMENTS:
            _fail(where, f"a whole number of at least {smallest}")
        return value

    return parse


def _dtype(value: Any, where: str) -> str:
    return value if isinstance(value, str) and value in _DTYPES else _fail(where, "the name of a dtype")


def _leaf_dtype(value: Any, where: str) -> str:
    return value if isinstance(value, str) and value in _KEY_WORDS else _dtype(value, where)


def _shape(value: Any, where: str) -> tuple[int, ...]:
    shape = _listed(_whole(0))(value, where)
    if len(shape) > 64 or math.prod(max(size, 1) for size in shape) > MOST_ELEMENTS:
        _fail(where, "a shape of at most 64 dimensions and 2^48 elements")
    return shape


def _optional(parser: FieldParser) -> FieldParser:
    return lambda value, where: None if value is None else parser(value, where)


def _listed(parser: FieldParser) -> FieldParser:
    def parse(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            _fail(where, "a list")
        return tuple(parser(element, f"{where}[{n}]") for n, element in enumerate(value))

    return parse


def _table(parser: FieldParser) -> FieldParser:
    def parse(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            _fail(where, "an object")
        return {_text(key, where): parser(member, f"{where}[{key!r}]") for key, member in value.items()}

    return parse


def _record(make: Callable[..., Any], **parsers: FieldParser) -> FieldParser:
    def parse(value: Any, where: str) -> Any:
        if not isinstance(value, dict) or value.keys() != parsers.keys():
            _fail(where, f"an object of {', '.join(sorted(parsers))}")
        return make(**{key: parser(value[key], f"{where}.{key}") for key, parser in parsers.items()})

    return parse


def _tree(value: Any, where: str) -> trees.Tree:
    try:
        return trees.from_json(value)
    except trees.TreeError as error:
        raise BundleError(f"{MANIFEST}: {where}: the tree {error}") from None


_symbol = _matching(_SYMBOL, "a name of letters, digits and _")
_digest = _matching(_DIGEST, "a SHA-256 in hexadecimal digits")
_SLICE = _record(
    Slice,
    name=_symbol,
    axis_names=_listed(_text),
    shape=_listed(_whole(1)),
    island=_optional(_text),
    overlap=_flag,
)
_LEAF = _record(
    Leaf,
    name=_text,
    shape=_shape,
    dtype=_leaf_dtype,
    weak_type=_flag,
    slices=_listed(_symbol),
    donated=_flag,
)
_ROOT = _record(Root, name=_text, tree=_tree)
_COMPUTATION = _record(ListedComputation, name=_text, local=_flag, effects=_flag)
_CONSTANT = _record(Constant, name=_text, shape=_shape, dtype=_dtype)
_CODE = _record(Code, computation=_text, devices=_whole(1), target=_digest, digest=_digest)
_INDEX = _record(dict, manifest=_digest, executables=_listed(_CODE))
_MANIFEST = _record(
    Manifest,
    name=_text,
    platform=_text,
    versions=_table(_text),
    slices=_listed(_SLICE),
    positional=_listed(_ROOT),
    named=_listed(_ROOT),
    arguments=_listed(_LEAF),
    result=_ROOT,
    results=_listed(_LEAF),
    computations=_listed(_COMPUTATION),
    custom_calls=_listed(_text),
    constants=_listed(_CONSTANT),
    digests=_table(_digest),
)


def _manifest_to_json(manifest: Manifest) -> dict[str, Any]:
    def to_json(root: Root) -> dict[str, Any]:
        return {"name": root.name, "tree": trees.to_json(root.tree)}

    plain = {
        field.name: getattr(manifest, field.name)
        for field in dataclasses.fields(manifest)
        if field.name not in ("positional", "named", "result", "version")
    }
    for key in ("slices", "arguments", "results", "computations", "constants"):
        plain[key] = [dataclasses.asdict(listed) for listed in plain[key]]
    return {
        "format": FORMAT,
        "version": manifest.version,
        "positional": [to_json(root) for root in manifest.positional],
        "named": [to_json(root) for root in manifest.named],
        "result": to_json(manifest.result),
        **plain,
    }


def _manifest_from_json(value: Any) -> Manifest:
    if not isinstance(value, dict) or value.pop("format", None) != FORMAT:
        raise BundleError(f"not a bundle: {MANIFEST} does not say that it is one")
    version = value.pop("version", None)
    if type(version) is not int:
        raise BundleError(f"not a bundle: {MANIFEST} does not say its version")
    if version not in (VERSION, VERSION_OF_PARTS):
        raise BundleError(
            f"its format is version {version}, and this reader knows {VERSION} and {VERSION_OF_PARTS}"
        )
    manifest: Manifest = dataclasses.replace(_MANIFEST(value, "bundle"), version=version)
    for what, names in (
        ("slice", [slice.name for slice in manifest.slices]),
        ("computation", [computation.name for computation in manifest.computations]),
        ("constant", [constant.name for constant in manifest.constants]),
        ("argument", [leaf.name for leaf in manifest.arguments]),
        ("result", [leaf.name for leaf in manifest.results]),
    ):
        if len(set(names)) < len(names):
            raise BundleError(f"{MANIFEST}: a name of a {what} occurs twice")
    for slice in manifest.slices:
        if not slice.shape or not len(slice.shape) == len(slice.axis_names) == len(set(slice.axis_names)):
            raise BundleError(
                f"{MANIFEST}: slice {slice.name}: expected one distinct axis name for each size"
            )
        if math.prod(slice.shape) > MOST_DEVICES:
            raise BundleError(f"{MANIFEST}: slice {slice.name}: expected at most {MOST_DEVICES} devices")
    if list(manifest.custom_calls) != sorted(set(manifest.custom_calls)):
        raise BundleError(f"{MANIFEST}: custom_calls: expected different names in alphabetical order")
    known = {slice.name for slice in manifest.slices}
    for leaf in (*manifest.arguments, *manifest.results):
        if not known.issuperset(leaf.slices) or len(set(leaf.slices)) < len(leaf.slices):
            raise BundleError(f"{MANIFEST}: '{leaf.name}' is on slices that are not there, or on one twice")
    _check_leaves((*manifest.positional, *manifest.named), manifest.arguments, "arguments")
    _check_leaves((manifest.result,), manifest.results, "results")
    return manifest


def _check_leaves(roots: Sequence[Root], leaves: Sequence[Leaf], what: str) -> None:
    named = [pair for root in roots for pair in trees.leaf_names(root.name, root.tree)]
    if named != [(leaf.name, n) for n, leaf in enumerate(leaves)]:
        raise BundleError(f"{MANIFEST}: the trees of the {what} do not have the leaves that are listed")

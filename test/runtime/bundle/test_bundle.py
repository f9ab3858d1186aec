"""File format of bundles: bundles can be read, and any other file gives one clear error."""

import io
import json
import random
import tracemalloc
import zipfile

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pathways.runtime.bundle import file as bundle
from pathways.runtime.bundle import stored_zip
from pathways.runtime.bundle.manifest import (
    BundleError,
    Code,
    Constant,
    Leaf,
    ListedComputation,
    Manifest,
    Root,
)
from pathways.runtime.plan.plan import SliceSpec

MANIFEST = Manifest(
    name="step",
    platform="cpu",
    versions={"pathways": "0"},
    slices=(SliceSpec("s0", ("x",), (2,)), SliceSpec("s1", ("a", "b"), (1, 2), "island1", True)),
    positional=(Root.of("params", {"b": 0, "w": [1, None]}), Root.of("x", 2)),
    named=(Root.of("key", 3),),
    arguments=(
        Leaf("params.b", (4,), "float32", False, ("s0",), True),
        Leaf("params.w.0", (4, 4), "bfloat16", False, ("s0", "s1"), False),
        Leaf("x", (), "float32", True, (), False),
        Leaf("key", (), "key<threefry2x32>", False, ("s0",), False),
    ),
    result=Root.of("result", (0,)),
    results=(Leaf("result.0", (4,), "float32", False, ("s1",), False),),
    computations=(ListedComputation("f", False, False), ListedComputation("cut", True, False)),
    custom_calls=("lapack_spotrf_ffi",),
    constants=(Constant("k0", (2, 2), "bfloat16"),),
)
FIRST, SECOND = (b"ML\xefR\rStableHLO_v1.0.0\0" + rest for rest in (b"first", b"second"))
CODE = (Code("f", 2, "0" * 64, bundle.sha256(b"native")), b"native")


def written(tmp_path, manifest=MANIFEST, executables=(CODE,)):
    path = tmp_path / "model.pwb"
    bundle.write(path, manifest, b"module {}\n", [FIRST, SECOND], [bytes(range(8))], executables)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return written(tmp_path_factory.mktemp("bundle")).read_bytes()


def members_of(data):
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return {info.filename: file.read(info) for info in file.infolist()}


def zipped(members):
    return b"".join(stored_zip.pack(members))


def with_manifest(data, change, *, fix_index=True):
    """Returns the bundle with another manifest, and with digests that fit."""
    members = members_of(data)
    manifest = json.loads(members["manifest.json"])
    change(manifest)
    members["manifest.json"] = json.dumps(manifest).encode()
    if fix_index:
        index = json.loads(members["executables/index.json"])
        index["manifest"] = bundle.sha256(members["manifest.json"])
        members["executables/index.json"] = json.dumps(index).encode()
    return zipped(members)


def test_bundle_round_trip(data):
    read = bundle.parse(data, "model.pwb")
    assert msgspec.structs.replace(read.manifest, digests={}) == MANIFEST
    assert bytes(read.program) == b"module {}\n"
    assert {name: bytes(raw) for name, raw in read.artifacts().items()} == {"f": FIRST, "cut": SECOND}
    assert read.constants()["k0"].tobytes() == bytes(range(8))
    assert [(code, bytes(raw)) for code, raw in read.executables] == [CODE]


def test_bundle_is_read_by_any_zip_tool(data):
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        assert file.testzip() is None
        assert {info.compress_type for info in file.infolist()} == {zipfile.ZIP_STORED}
        assert file.namelist()[0] == "manifest.json"


def test_bundle_always_has_the_same_bytes(data, tmp_path):
    assert written(tmp_path).read_bytes() == data


def test_bundle_keeps_the_old_file_when_a_write_fails(tmp_path):
    path = written(tmp_path)
    before = path.read_bytes()
    with pytest.raises(BundleError, match="printable"):
        written(tmp_path, msgspec.structs.replace(MANIFEST, name="a\nb"))
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["model.pwb"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"", "does not start like one"), (b"PK\3\4", "truncated"), (b"module {}", "does not start like one")],
)
def test_bundle_refuses_other_files(content, problem, tmp_path):
    path = tmp_path / "model.pwb"
    path.write_bytes(content)
    with pytest.raises(BundleError, match=f"^{path}: .*{problem}"):
        bundle.read(path)


def test_bundle_refuses_missing_files_and_folders(tmp_path):
    with pytest.raises(BundleError, match="no such file"):
        bundle.read(tmp_path / "nothing")
    with pytest.raises(BundleError, match="not a file"):
        bundle.read(tmp_path)


def test_bundle_reads_no_large_file(tmp_path):
    path = tmp_path / "model.pwb"
    with path.open("wb") as file:
        file.truncate(2**40)
    tracemalloc.start()
    with pytest.raises(BundleError, match="does not start like one"):
        bundle.read(path)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_bundle_is_written_through_links(tmp_path):
    link = tmp_path / "link.pwb"
    link.symlink_to("model.pwb")
    bundle.write(link, MANIFEST, b"module {}\n", [FIRST, SECOND], [bytes(8)])
    assert link.is_symlink()
    assert (tmp_path / "model.pwb").is_file()


def test_bundle_refuses_every_prefix(data):
    for length in range(len(data)):
        with pytest.raises(BundleError):
            bundle.parse(data[:length], "model.pwb")


@pytest.mark.parametrize("name", sorted(members_of(zipped({})) | {"program.mlir": b""}))
def test_bundle_refuses_a_lone_member(name):
    with pytest.raises(BundleError, match=r"no manifest\.json"):
        bundle.parse(zipped({name: b""}), "model.pwb")


def test_bundle_refuses_a_change_in_any_member(data):
    members = members_of(data)
    # A space after JSON is no change, except for the digest of the manifest.
    for name in members.keys() - {"executables/index.json"}:
        named = "executables belong" if name == "manifest.json" else f"{name} is damaged"
        with pytest.raises(BundleError, match=named):
            bundle.parse(zipped({**members, name: members[name] + b" "}), "model.pwb")


def test_bundle_names_a_missing_member(data):
    members = members_of(data)
    for name in members.keys() - {"manifest.json", "executables/index.json"}:
        rest = {key: value for key, value in members.items() if key != name}
        with pytest.raises(BundleError, match=f"member {name} is missing"):
            bundle.parse(zipped(rest), "model.pwb")


@pytest.mark.parametrize(
    "name",
    ["../evil", "/etc/passwd", "computations/0009.stablehlo", "extra", "constants/../x", "C:\\x", "a\0b"],
)
def test_bundle_refuses_unexpected_members(data, name):
    with pytest.raises(BundleError, match="unexpected member"):
        bundle.parse(zipped({**members_of(data), name: b""}), "model.pwb")


def test_bundle_refuses_zips_of_other_tools(data):
    """Zips with compressed members above all, whose sizes cannot be trusted."""
    for options, problem in (
        ({"compression": zipfile.ZIP_DEFLATED}, "compressed"),
        ({"compression": zipfile.ZIP_STORED}, "header of member"),
    ):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", **options) as file:
            for name, content in members_of(data).items():
                file.writestr(name, content)
        with pytest.raises(BundleError, match=problem):
            bundle.parse(buffer.getvalue(), "model.pwb")


def test_bundle_refuses_a_doubled_member(data):
    buffer = io.BytesIO(data)
    with zipfile.ZipFile(buffer, "a") as file, pytest.warns(UserWarning, match="Duplicate"):
        file.writestr(zipfile.ZipInfo("program.mlir"), b"other")
    with pytest.raises(BundleError, match=r"twice|header of member"):
        bundle.parse(buffer.getvalue(), "model.pwb")


def test_bundle_checks_sizes_before_it_allocates(data):
    """A directory that announces gigabytes allocates nothing."""
    changed = bytearray(data)
    at = changed.rindex(b"PK\1\2")
    changed[at + 20 : at + 28] = b"\xff\xff\xff\x7f" * 2
    tracemalloc.start()
    with pytest.raises(BundleError, match="reaches into the directory"):
        bundle.parse(bytes(changed), "model.pwb")
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda m: m.update(version=3), "format is version 3, and this reader knows 1 and 2"),
        (lambda m: m.update(version=True), "does not say its version"),
        (lambda m: m.update(format="zip"), "not a bundle"),
        (lambda m: m.update(extra=1), "extra: unknown key; expected some of name, platform"),
        (lambda m: m.pop("slices"), "slices: missing"),
        (lambda m: m.update(name="a\x1b[31m"), "printable"),
        (lambda m: m.update(name=""), "printable"),
        (lambda m: m["arguments"][0].update(shape=[-1]), "whole number"),
        (lambda m: m["arguments"][0].update(shape=[2**40, 2**40]), r"expected at most 2\^48 elements"),
        (lambda m: m["arguments"][0].update(shape=[1.5]), "whole number"),
        (lambda m: m["arguments"][0].update(dtype="object"), "name of a dtype"),
        (lambda m: m["arguments"][0].update(dtype="key<mine>"), "name of a dtype"),
        (lambda m: m["constants"][0].update(dtype="O"), "name of a dtype"),
        (lambda m: m["constants"][0].update(shape=[2, 3]), "its shape and dtype need 12"),
        (lambda m: m["arguments"][0].update(donated=1), "true or false"),
        (lambda m: m["arguments"][0].update(name="params.c"), "trees of the arguments"),
        (lambda m: m["arguments"].pop(), "trees of the arguments"),
        (lambda m: m["result"].update(tree=7), "trees of the results"),
        (lambda m: m["result"].update(tree={"set": []}), "of a kind that is not"),
        (lambda m: m["arguments"][0].update(slices=["s9"]), "slices that do not exist"),
        (lambda m: m["slices"][1].update(name="s0"), "slice occurs twice"),
        (lambda m: m["slices"][0].update(shape=[0]), "at least 1"),
        (lambda m: m["slices"][0].update(axis_names=["x", "y"]), "one distinct axis name"),
        (lambda m: m["slices"][0].update(axis_names=["x", "x"]), "one distinct axis name"),
        (lambda m: m.update(custom_calls=["b", "a"]), "different names in alphabetical order"),
        (lambda m: m["slices"][0].update(shape=[2**21]), "at most 65536 devices"),
        (lambda m: m["slices"][0].update(name="s 0"), "letters, digits"),
        (lambda m: m["computations"][1].update(name="f"), "computation occurs twice"),
        (lambda m: m["digests"].popitem(), "digests are not those"),
        (lambda m: m["digests"].update({"program.mlir": "0" * 64}), r"program\.mlir is damaged"),
        (lambda m: m["digests"].update({"program.mlir": "x"}), "SHA-256"),
    ],
)
def test_bundle_refuses_invalid_manifests(data, change, problem):
    with pytest.raises(BundleError, match=problem) as error:
        bundle.parse(with_manifest(data, change), "model.pwb")
    assert "\n" not in str(error.value)
    assert "\x1b" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"[" * 100_000, "nested too deep|not JSON"),
        (b'{"a": NaN}', "not a number"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"version": ' + b"9" * 10_000 + b"}", "not JSON"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b"[]", "not a bundle"),
    ],
)
def test_bundle_refuses_invalid_json(text, problem):
    with pytest.raises(BundleError, match=problem):
        bundle.parse(zipped({"manifest.json": text}), "model.pwb")


def test_bundle_refuses_executables_of_another(data):
    changed = with_manifest(data, lambda m: m.update(name="other"), fix_index=False)
    with pytest.raises(BundleError, match="belong to another bundle"):
        bundle.parse(changed, "model.pwb")


def refusal(data):
    """Returns the error of reading bytes; None for a bundle."""
    try:
        bundle.parse(data, "model.pwb")
    except BundleError as error:
        return str(error)
    return None


mutations = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "move"]), st.integers(0, 2**31), st.integers(0, 2**31)
    ),
    min_size=1,
    max_size=4,
)


def mutated(data, changes):
    changed = bytearray(data)
    for kind, a, b in changes:
        at, other = a % (len(changed) + 1), b % (len(changed) + 1)
        match kind:
            case "flip" if at < len(changed):
                changed[at] ^= 1 << b % 8
            case "cut":
                del changed[min(at, other) : max(at, other)]
            case "insert":
                changed[at:at] = random.Random(b).randbytes(b % 9)
            case "move":
                changed[at:at] = changed[other : other + 40]
    return bytes(changed)


@given(mutations)
def test_bundle_refuses_any_damage(data, changes):
    changed = mutated(data, changes)
    problem = refusal(changed)
    if problem is None:
        assert bundle.parse(changed, "model.pwb").digest == bundle.parse(data, "model.pwb").digest
    else:
        assert "\n" not in problem


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["float32", "s0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_bundle_survives_any_entry_in_its_manifest(data, draw):
    """One value somewhere in the manifest is replaced by any JSON."""

    def change(manifest):
        place, key = manifest, draw.draw(st.sampled_from(sorted(manifest)))
        while isinstance(place[key], (dict, list)) and place[key] and draw.draw(st.booleans()):
            place = place[key]
            keys = sorted(place) if isinstance(place, dict) else range(len(place))
            key = draw.draw(st.sampled_from(list(keys)))
        place[key] = draw.draw(json_values)

    assert "\n" not in (refusal(with_manifest(data, change)) or "")


@given(
    st.dictionaries(
        st.sampled_from(["manifest.json", "program.mlir", "x", "executables/0000.bin"]), st.binary()
    )
)
@example({})
@example({"manifest.json": b"{}"})
def test_bundle_refuses_random_zips(members):
    with pytest.raises(BundleError):
        bundle.parse(zipped(members), "model.pwb")

"""Bundles of earlier releases can be read, and are written again with the same bytes.

`Inputs/stages.pwb` has trees, donation, PRNG keys, a constant and LAPACK; `parts.pwb` is of the second
version of the format, which has sub-programs; `executables.pwb` has an executable, and every optional entry.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from pathways.runtime.bundle import file as bundle
from pathways.runtime.bundle.examine import examine

INPUTS = Path(__file__).parent / "Inputs"
DIGESTS = {
    "stages": "efe8f77f31a745b9e981cd45be6fffeca26ef9a90df404af6df5c3fd18679e0a",
    "parts": "0600f03e725147fef8693c069eee75d2a4cea7dba2edb84aa3d9a0aa2f00c6f9",
    "executables": "8341b0a4e08b8c4a7b0baa424cf2aa80d07141ff3daf9edc76b61eedd2fe41cb",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_golden_bundle_is_written_as_it_was(name: str, tmp_path: Path):
    read = bundle.read(INPUTS / f"{name}.pwb")
    bundle.write(
        tmp_path / "again.pwb",
        read.manifest,
        bytes(read.program),
        [bytes(data) for data in read.artifacts().values()],
        [bytes(read.members[bundle.constant_member(n)]) for n in range(len(read.manifest.constants))],
        [(code, bytes(data)) for code, data in read.executables],
    )
    assert hashlib.sha256((tmp_path / "again.pwb").read_bytes()).hexdigest() == DIGESTS[name]


@pytest.mark.parametrize("name", ["stages", "parts"])
def test_golden_bundle_has_its_program(name: str):
    read = bundle.read(INPUTS / f"{name}.pwb")
    assert examine(read).plan.computations
    assert [leaf.name for leaf in read.manifest.arguments] == {
        "stages": ["state.n", "state.w", "x", "key"],
        "parts": ["w", "x", "end", "key"],
    }[name]


def test_golden_bundle_keeps_every_entry():
    manifest = bundle.read(INPUTS / "executables.pwb").manifest
    assert [(s.name, s.axis_names, s.shape, s.island, s.overlap) for s in manifest.slices] == [
        ("s0", ("x",), (2,), None, False),
        ("s1", ("a", "b"), (1, 2), "island1", True),
    ]
    assert [(leaf.name, leaf.shape, leaf.dtype, leaf.slices) for leaf in manifest.arguments] == [
        ("params.b", (4,), "float32", ("s0",)),
        ("params.w.0", (4, 4), "bfloat16", ("s0", "s1")),
        ("x", (), "float32", ()),
        ("key", (), "key<threefry2x32>", ("s0",)),
    ]
    assert [leaf.weak_type for leaf in manifest.arguments] == [False, False, True, False]
    assert [leaf.donated for leaf in manifest.arguments] == [True, False, False, False]
    assert [(root.name, root.tree) for root in manifest.positional] == [
        ("params", {"b": 0, "w": [1, None]}),
        ("x", 2),
    ]
    assert (manifest.result.tree, manifest.version, manifest.custom_calls) == (
        (0,),
        1,
        ("lapack_spotrf_ffi",),
    )
    assert [(c.name, c.local, c.effects) for c in manifest.computations] == [
        ("f", False, False),
        ("cut", True, False),
    ]

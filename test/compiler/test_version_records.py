"""Records of versions, for a controller that is started again, and the folder that it has alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check import assert_equal

from pathways.compiler.resilience.layouts.version_records import (
    RecordedVersion,
    VersionRecorder,
    read_versions,
)
from pathways.compiler.resilience.run_folder import RUN_FILE, RunFolder
from pathways.runtime.resilience.records import VersionKey

KEY = VersionKey(4, 1)


def recorded(state: Any, position: Any = 0) -> str | None:
    leaves, tree = jax.tree.flatten(state)
    return VersionRecorder().write(tree, RecordedVersion(leaves, position, (0,)))


def read(state: Any, position: Any = 0) -> Any:
    text = recorded(state, position)
    assert text is not None
    version = read_versions({KEY: text}, state, [])[KEY]
    return jax.tree.unflatten(jax.tree.structure(state), version.leaves), version.position


def test_records_have_leaves_of_this_process_bit_by_bit():
    with jax.enable_x64(True):
        wide = jnp.arange(3.0)
    state = {
        "numpy": np.array([[0.1, np.nan], [-0.0, np.inf]]),
        "small float": np.arange(3).astype(jnp.bfloat16),
        "number": np.float32(0.1),
        "flags": np.array([True, False]),
        "jax": jnp.arange(4),
        "wide": wide,
        "weak": jnp.asarray(1.5),
        "keys": jax.random.split(jax.random.key(3), 2),
        "other keys": jax.random.key(1, impl="rbg"),
        "count": 2**40,
        "rate": 0.1,
        "is fast": False,
    }
    found, position = read(state, {"shard": 3})
    assert position == {"shard": 3}
    for name, leaf in state.items():
        assert type(found[name]) is type(leaf)
        if name in ("keys", "other keys"):
            assert found[name].dtype == leaf.dtype
            assert_equal(jax.random.key_data(found[name]), jax.random.key_data(leaf))
        else:
            assert_equal(found[name], leaf)
    assert found["weak"].weak_type
    found["numpy"][0] = 1


def test_records_have_positions_of_bytes():
    assert read({"count": 1}, b"\x00\xff")[1] == b"\x00\xff"


def test_records_warn_once_of_what_they_cannot_have(caplog):
    recorder, tree = VersionRecorder(), jax.tree.structure([0])
    for leaf in ("text", np.zeros(1 << 20, np.float32)):
        assert recorder.write(tree, RecordedVersion([leaf], 0, (0,))) is None
    assert VersionRecorder().write(tree, RecordedVersion([np.zeros(1 << 20, np.float32)], 0, (0,))) is None
    begin = "pw.resilient: if this process is killed, the same call goes on from disk alone: "
    assert [record.message for record in caplog.records] == [
        f"{begin}state[0] is a str in this process",
        f"{begin}4 MiB of the state are in this process",
    ]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"w": np.zeros(3)}, r"state\['w'\] is float32\[2\] in the run that goes on, and float32\[3\] in"),
        ({}, r"state\['w'\] is float32\[2\] in the run that goes on, and missing in"),
        ({"w": np.zeros(2), "b": "x"}, r"state\['b'\] is missing in the run that goes on, and str in"),
    ],
)
def test_records_are_of_one_state(given, what):
    text = recorded({"w": np.zeros(2, np.float32)})
    assert text is not None
    with pytest.raises(ValueError, match=what):
        read_versions({KEY: text}, given, [])


def test_run_folder_belongs_to_one_run_at_a_time(tmp_path):
    """The name in memory stays as long as the run may go on."""
    folder, other = RunFolder(str(tmp_path / "run")), RunFolder(str(tmp_path / "run"))
    name = folder.open()
    with pytest.raises(
        RuntimeError, match=r"run is in use by process .*; wait until that has ended, or pass"
    ):
        other.open()
    folder.close(keeps=True)
    assert other.open() == name
    other.close(keeps=False)
    assert [*(tmp_path / "run").iterdir()] == []
    assert folder.open() != name
    folder.close(keeps=True)


def test_run_folder_has_a_new_run_if_its_file_was_not_written(tmp_path):
    Path(tmp_path, RUN_FILE).write_text("{")
    folder = RunFolder(str(tmp_path))
    assert folder.open().startswith("kept-")
    folder.close(keeps=False)

"""Snapshots in files: what is read is what was written, or an error, whenever a process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import hypothesis
import hypothesis.extra.numpy as npst
import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest

from pathways.runtime.resilience.records import VersionKey
from pathways.runtime.resilience.snapshots import host_snapshots
from pathways.runtime.resilience.snapshots.block_file import SnapshotError
from pathways.runtime.resilience.snapshots.block_record import StateBlock
from pathways.runtime.resilience.snapshots.host_snapshots import HostSnapshots, default_snapshot_folder
from pathways.runtime.resilience.snapshots.leftovers import find_leftovers, remove_leftovers

KEY, NEXT = VersionKey(10, 1), VersionKey(20, 1)


@pytest.fixture
def snapshots(tmp_path: Path):
    with HostSnapshots(tmp_path / "mine", "run", 2) as opened:
        yield opened


def block(name: str, data: np.ndarray) -> StateBlock:
    return StateBlock(name, tuple((0, count) for count in data.shape), data)


def some_blocks() -> list[StateBlock]:
    return [block("w", np.arange(12.0).reshape(3, 4)), block("b", np.ones(3, ml_dtypes.bfloat16))]


DTYPES = [np.float32, np.float64, np.int8, np.uint64, np.bool_, np.complex64, ">i4"]


@hypothesis.settings(max_examples=60, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(
    st.lists(
        st.sampled_from(DTYPES).flatmap(
            lambda dtype: npst.arrays(
                dtype, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
            )
        ),
        max_size=4,
    )
)
def test_snapshots_read_what_was_written(snapshots: HostSnapshots, arrays: list[np.ndarray]):
    blocks = [block(f"array {n}", array) for n, array in enumerate(arrays)]
    snapshots.keep(())
    snapshots.write(KEY, 2, blocks)
    found = snapshots.read(KEY, 2)
    assert [*found] == [one.name for one in blocks]
    for one in blocks:
        read = found[one.name]
        assert read.index == one.index
        assert read.data.shape == one.data.shape
        assert read.data.tobytes() == one.data.astype(one.data.dtype.newbyteorder("=")).tobytes()


def test_snapshots_keep_copies_that_an_earlier_controller_has_numbered(snapshots: HostSnapshots):
    for name in ("a", "b"):
        snapshots.write(KEY, 2, [block(name, np.arange(3))])
    assert [snapshots.names(KEY, number) for number in (2, 3)] == [("a",), ("b",)]


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4])
def test_snapshots_have_small_types(snapshots: HostSnapshots, dtype: type):
    data = np.arange(6).astype(dtype)[::2]
    snapshots.write(KEY, 2, [block("w", data)])
    read = snapshots.read(KEY, 2)["w"].data
    assert read.dtype == data.dtype
    assert read.tobytes() == data.tobytes()


@hypothesis.settings(max_examples=100, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(st.data())
def test_snapshots_that_are_changed_are_refused(snapshots: HostSnapshots, data: st.DataObject):
    snapshots.keep(())
    snapshots.write(KEY, 2, some_blocks())
    file = snapshots.path / "10.1" / "copy2.blocks"
    content = bytearray(file.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    file.write_bytes(content)
    found, why = {}, ""
    try:
        found = snapshots.read(KEY, 2)
    except SnapshotError as error:
        why = str(error)
    if why:
        assert why.startswith(f"snapshot 10.1, copy 2, in {snapshots.path} is corrupt: ")
        return
    # Between blocks there is room that nobody reads.
    for one in some_blocks():
        assert found[one.name].data.tobytes() == one.data.tobytes()


def test_snapshots_with_pieces_in_another_order_are_refused(snapshots: HostSnapshots):
    data = np.arange(3 * 8192, dtype=np.uint64)
    snapshots.write(KEY, 2, [block("w", data)])
    file = snapshots.path / "10.1" / "copy2.blocks"
    content = file.read_bytes()
    piece = 8192 * 8
    file.write_bytes(content[piece : 2 * piece] + content[:piece] + content[2 * piece :])
    with pytest.raises(SnapshotError, match="wrong checksum of block w"):
        snapshots.read(KEY, 2)


def test_snapshots_have_their_space_before_an_array_is_computed(snapshots: HostSnapshots):
    """Steps that donate the array wait until it is copied, and not for the system to find space."""
    sizes = []

    class Pending:
        nbytes = 40000

        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            sizes.extend(file.stat().st_size for file in (snapshots.path / "10.1").iterdir())
            return np.ones(10000, np.float32)

    snapshots.write(KEY, 2, [StateBlock("w", ((0, 10000),), Pending())])
    assert len(sizes) == 1
    assert sizes[0] > Pending.nbytes
    assert snapshots.read(KEY, 2)["w"].data.sum() == 10000


def test_snapshots_read_some_blocks_alone(snapshots: HostSnapshots):
    snapshots.write(KEY, 2, some_blocks())
    assert [*snapshots.read(KEY, 2, ["b"])] == ["b"]
    with pytest.raises(SnapshotError, match=r"copy 2, in .* has no block c"):
        snapshots.read(KEY, 2, ["c"])
    with pytest.raises(SnapshotError, match=r"snapshot 10.1, copy 3, in .* does not exist"):
        snapshots.read(KEY, 3)
    with pytest.raises(SnapshotError, match=r"snapshot 20.1 in .* does not exist"):
        snapshots.commit(NEXT)


def test_snapshots_are_sent_to_a_buddy(snapshots: HostSnapshots, tmp_path: Path):
    snapshots.write(KEY, 2, some_blocks())
    content = (snapshots.path / "10.1" / "copy2.blocks").read_bytes()
    with HostSnapshots(tmp_path / "mine", "run", 3) as buddy:
        with pytest.raises(SnapshotError, match=r"9 of \d+ bytes were received"):
            buddy.receive(KEY, 2, len(content), iter([content[:9]]))
        assert buddy.versions() == {}
        buddy.receive(KEY, 2, len(content), iter([content[:9], content[9:]]))
        assert buddy.read(KEY, 2)["w"].data.tobytes() == some_blocks()[0].data.tobytes()
        with pytest.raises(SnapshotError, match="is corrupt"):
            buddy.receive(NEXT, 2, len(content), iter([b"?" * len(content)]))
        assert buddy.versions().keys() == {KEY}


def test_snapshots_are_kept_committed_and_dropped(snapshots: HostSnapshots):
    for key in (KEY, NEXT):
        snapshots.write(key, 2, some_blocks())
    snapshots.write(NEXT, 3, some_blocks())
    snapshots.commit(NEXT)
    snapshots.commit(NEXT)
    found = snapshots.versions()
    assert {key: (sorted(one.numbers), one.is_committed) for key, one in found.items()} == {
        KEY: ([2], False),
        NEXT: ([2, 3], True),
    }
    held = snapshots.read(KEY, 2)["w"].data
    snapshots.keep([NEXT])
    assert snapshots.versions().keys() == {NEXT}
    # Its memory is free once nobody reads it.
    assert held.sum() == 66.0
    assert sorted(path.name for path in snapshots.path.iterdir()) == ["20.1", "lock"]


def test_snapshots_are_found_while_another_thread_finds_them(snapshots: HostSnapshots):
    snapshots.write(KEY, 2, some_blocks())
    with os.scandir(snapshots._folder) as entries:
        # The system has given it all of the folder.
        next(entries)
        assert snapshots.versions().keys() == {KEY}


def test_snapshots_stay_when_their_process_ends(tmp_path: Path):
    with HostSnapshots(tmp_path / "mine", "run", 2) as first:
        first.write(KEY, 2, some_blocks())
        with pytest.raises(SnapshotError, match="is in use by another process; two clusters need two names"):
            HostSnapshots(tmp_path / "mine", "run", 2)
    with HostSnapshots(tmp_path / "mine", "run", 2) as second:
        assert second.versions().keys() == {KEY}


def test_snapshots_are_for_their_user_alone(snapshots: HostSnapshots):
    snapshots.write(KEY, 2, some_blocks())
    folders = [snapshots.path.parents[1], snapshots.path.parent, snapshots.path, snapshots.path / "10.1"]
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}
    assert (snapshots.path / "10.1" / "copy2.blocks").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_snapshots_refuse_links_and_open_folders(tmp_path: Path, depth: int):
    parts = ["mine", "run", "host2"]
    folder = tmp_path.joinpath(*parts[: depth + 1])
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for above in parts[:depth]:
        tmp_path.joinpath(*parts[: parts.index(above) + 1]).chmod(0o700)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    folder.symlink_to(elsewhere)
    with pytest.raises(SnapshotError, match="is a link; choose another one"):
        HostSnapshots(tmp_path / "mine", "run", 2)
    folder.unlink()
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(SnapshotError, match=r"is open to others \(mode 0755\); choose another one"):
        HostSnapshots(tmp_path / "mine", "run", 2)


def test_snapshots_refuse_folders_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    HostSnapshots(tmp_path / "mine", "run", 2).close()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(SnapshotError, match=f"belongs to user {user}; choose another one"):
        HostSnapshots(tmp_path / "mine", "run", 2)
    assert default_snapshot_folder() == Path(f"/dev/shm/pathways-{user + 1}")


def test_snapshots_refuse_a_file_that_is_a_link(snapshots: HostSnapshots):
    snapshots.write(KEY, 2, some_blocks())
    file = snapshots.path / "10.1" / "copy2.blocks"
    file.rename(file.with_name("other"))
    file.symlink_to("other")
    with pytest.raises(SnapshotError, match=r"copy 2, in .* is a link"):
        snapshots.read(KEY, 2)


def test_snapshots_refuse_odd_names_and_types(tmp_path: Path, snapshots: HostSnapshots):
    with pytest.raises(ValueError, match=r"cluster '\.\./run': expected letters"):
        HostSnapshots(tmp_path / "mine", "../run", 2)
    with pytest.raises(SnapshotError, match="missing does not exist"):
        HostSnapshots(tmp_path / "missing" / "mine", "run", 2)
    with pytest.raises(TypeError, match="block w has elements of type object"):
        snapshots.write(KEY, 2, [block("w", np.array([None]))])
    assert snapshots.versions() == {}


def test_snapshots_know_their_blocks_and_the_space_for_them(snapshots: HostSnapshots, monkeypatch):
    monkeypatch.setattr(HostSnapshots, "_free_bytes", lambda self: 64 << 20)
    snapshots.write(KEY, 2, some_blocks())
    written = (snapshots.path / "10.1" / "copy2.blocks").stat().st_size
    assert snapshots.names(KEY, 2) == ("w", "b")
    assert snapshots.space() == (snapshots.path.stat().st_dev, (64 << 20) + written)
    snapshots.remove()
    assert not snapshots.path.parent.exists()


def test_snapshots_that_do_not_fit_leave_nothing(snapshots: HostSnapshots, monkeypatch):
    snapshots.write(KEY, 2, some_blocks())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(host_snapshots.os, "posix_fallocate", full)
    with pytest.raises(SnapshotError, match=r"snapshot 20.1, copy 2, in .* needs .*, .* free on host2 in"):
        snapshots.write(NEXT, 2, some_blocks())
    assert snapshots.versions().keys() == {KEY}
    assert [*(snapshots.path / "20.1").iterdir()] == []


def test_snapshots_are_dropped_while_they_are_written(snapshots: HostSnapshots):
    has_begun, is_dropped = threading.Event(), threading.Event()

    def chunks():
        has_begun.set()
        is_dropped.wait(30)
        yield b"x"

    errors = []

    def receive() -> None:
        try:
            snapshots.receive(KEY, 3, 1, chunks())
        except SnapshotError as error:
            errors.append(str(error))

    thread = threading.Thread(target=receive)
    thread.start()
    has_begun.wait(30)
    snapshots.keep([])
    is_dropped.set()
    thread.join()
    assert len(errors) == 1
    assert snapshots.versions() == {}


def test_snapshots_of_dead_processes_are_found_and_removed(tmp_path: Path):
    for host in (0, 1):
        with HostSnapshots(tmp_path / "mine", "old", host) as dead:
            dead.write(KEY, host, some_blocks())
    with HostSnapshots(tmp_path / "mine", "new", 0) as alive:
        alive.write(KEY, 0, some_blocks())
        found = find_leftovers(tmp_path / "mine")
        assert [(one.cluster, one.host) for one in found] == [("old", "host0"), ("old", "host1")]
        assert all(one.count > 100 for one in found)
        assert remove_leftovers(tmp_path / "mine", 3600.0) == []
        assert remove_leftovers(tmp_path / "mine", 3600.0, lambda one: one.cluster == "new") == []
        removed = remove_leftovers(tmp_path / "mine", 3600.0, lambda one: one.cluster == "old")
        assert [(one.cluster, one.host) for one in removed] == [("old", "host0"), ("old", "host1")]
        assert alive.versions().keys() == {KEY}
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["new"]
    assert find_leftovers(tmp_path / "missing") == []


WRITER = """
import sys
import numpy as np
from pathways.runtime.resilience.records import VersionKey
from pathways.runtime.resilience.snapshots.block_record import StateBlock
from pathways.runtime.resilience.snapshots.host_snapshots import HostSnapshots

with HostSnapshots(sys.argv[1], "run", 2) as snapshots:
    first = max((key.step for key in snapshots.versions()), default=0)
    for step in range(first + 1, 10**6):
        key = VersionKey(step, 1)
        data = np.full(1 << 18, step)
        snapshots.write(key, 2, [StateBlock("w", ((0, 1 << 18),), data)])
        snapshots.commit(key)
        snapshots.keep([key])
        print(step, flush=True)
"""


@pytest.mark.process
def test_snapshots_survive_kills_while_they_are_written(tmp_path: Path):
    program = tmp_path / "writer.py"
    program.write_text(WRITER)
    last = 0
    for count in range(1, 9):
        command = [sys.executable, str(program), str(tmp_path / "mine")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(count):
            last = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        with HostSnapshots(tmp_path / "mine", "run", 2) as snapshots:
            versions = snapshots.versions()
            committed = [key for key, one in versions.items() if one.is_committed]
            assert max(committed).step >= last
            for key in versions:
                assert (snapshots.read(key, 2)["w"].data == key.step).all()
            files = [file.name for file in snapshots.path.rglob("*") if file.is_file()]
            assert not [name for name in files if name.endswith(".tmp")]

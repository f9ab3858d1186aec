"""Store of compiled code: trusted files, limits, and many processes at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathways.runtime.xla import code_store
from pathways.runtime.xla.code_store import CodeStore, from_environment

KEY = "0" * 64
OTHER = "1" * 64


@pytest.fixture
def store(tmp_path: Path) -> CodeStore:
    return CodeStore(tmp_path / "cache" / "executables", limit=1000)


def only_file(store: CodeStore) -> Path:
    (path,) = store.folder.iterdir()
    return path


def used(store: CodeStore, key: str, when: int) -> None:
    os.utime(store.folder / f"{key}.code", (when, when))


def test_code_store_keeps_code_for_other_processes(store: CodeStore) -> None:
    assert store.read(KEY) is None
    store.write(KEY, b"code")
    store.write(OTHER, b"")
    again = CodeStore(store.folder, limit=1000)
    assert (again.read(KEY), again.read(OTHER)) == (b"code", b"")
    store.discard(KEY)
    assert (again.read(KEY), again.read(OTHER)) == (None, b"")


@given(st.binary(max_size=200), st.data())
def test_code_store_ignores_a_damaged_file(tmp_path_factory, code: bytes, data: st.DataObject) -> None:
    store = CodeStore(tmp_path_factory.mktemp("store"), limit=1000)
    store.write(KEY, code)
    path = only_file(store)
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans(), label="truncated"):
        del content[position:]
    else:
        content[position] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    assert store.read(KEY) is None
    store.write(KEY, code)
    assert store.read(KEY) == code


def test_code_store_ignores_a_renamed_file(store: CodeStore) -> None:
    store.write(KEY, b"code")
    only_file(store).rename(store.folder / f"{OTHER}.code")
    assert store.read(OTHER) is None


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_code_store_ignores_a_file_writable_by_others(store: CodeStore, mode: int) -> None:
    store.write(KEY, b"code")
    only_file(store).chmod(mode)
    assert store.read(KEY) is None


def test_code_store_ignores_a_link(store: CodeStore, tmp_path: Path) -> None:
    store.write(KEY, b"code")
    path = only_file(store)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert store.read(KEY) is None


def test_code_store_keeps_files_private(store: CodeStore) -> None:
    store.write(KEY, b"code")
    assert only_file(store).stat().st_mode & 0o077 == 0
    assert store.folder.stat().st_mode & 0o077 == 0


def test_code_store_refuses_a_folder_that_other_users_can_write(store: CodeStore, capsys) -> None:
    store.folder.mkdir(parents=True)
    store.folder.chmod(0o777)
    store.write(KEY, b"code")
    store.write(OTHER, b"code")
    assert not list(store.folder.iterdir())
    assert capsys.readouterr().err == (
        f"pathways: compiled code is not cached in {store.folder}: it is open to others (mode 0777) "
        "(PW_CACHE_DIR= turns this off)\n"
    )


def test_code_store_warns_once_of_a_folder_it_cannot_create(tmp_path: Path, capsys) -> None:
    (tmp_path / "file").touch()
    store = CodeStore(tmp_path / "file" / "executables", limit=1000)
    store.write(KEY, b"code")
    store.write(KEY, b"code")
    assert store.read(KEY) is None
    store.discard(KEY)
    store.trim()
    assert capsys.readouterr().err == (
        f"pathways: compiled code is not cached in {store.folder}: Not a directory "
        "(PW_CACHE_DIR= turns this off)\n"
    )


def test_code_store_leaves_no_file_of_an_interrupted_write(
    store: CodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.write(KEY, b"code")
    assert not list(store.folder.iterdir())


def test_code_store_trims_the_least_recently_used(store: CodeStore) -> None:
    keys = [str(number) * 64 for number in range(4)]
    unlimited = CodeStore(store.folder, limit=1 << 20)
    for when, key in enumerate(keys):
        unlimited.write(key, bytes(300))
        used(store, key, when)
    assert store.read(keys[0]) is not None  # Used just now.
    store.trim()
    assert [store.read(key) is not None for key in keys] == [True, False, False, True]


def test_code_store_trims_at_the_first_write_and_after_each_sixteenth_of_its_limit(
    store: CodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To trim takes a system call for each file of the folder."""
    trimmed: list[int] = []
    monkeypatch.setattr(CodeStore, "trim", lambda _: trimmed.append(number))
    for number in range(9):
        CodeStore(store.folder, limit=1600).write(f"{number:064x}", bytes(30))
    assert trimmed == [0, 4, 8]


def test_code_store_that_is_full_stays_within_a_sixteenth(store: CodeStore) -> None:
    for number in range(100):
        store.write(f"{number:064x}", bytes(40))
        assert sum(path.stat().st_size for path in store.folder.iterdir()) <= 1000 + 1000 // 16 + 80
    assert store.read(f"{99:064x}") is not None


def test_code_store_writes_no_code_above_the_limit(store: CodeStore) -> None:
    store.write(KEY, bytes(1001))
    assert store.read(KEY) is None


def test_code_store_trims_abandoned_files_and_no_foreign_ones(store: CodeStore) -> None:
    store.write(KEY, bytes(900))
    own = [store.folder / f"{KEY}.code.{number:016x}.tmp" for number in range(2)]
    foreign = [store.folder / name for name in ("notes.txt", "my.code", "old.tmp", f"{OTHER}.code.orig")]
    for path in (*own, *foreign):
        path.write_bytes(bytes(900))
    for path in (own[0], *foreign):
        os.utime(path, (0, 0))
    store.trim()
    assert [path.exists() for path in own] == [False, True]
    assert all(path.exists() for path in foreign)
    assert store.read(KEY) is not None


@pytest.mark.process
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_code_store_ignores_pipes_and_folders(store: CodeStore, make: Callable[[Path], None]) -> None:
    """A read does not wait for a writer of a pipe, either."""
    store.write(OTHER, b"code")
    make(store.folder / f"{KEY}.code")
    script = f"""if True:
        from pathlib import Path
        from pathways.runtime.xla.code_store import CodeStore
        store = CodeStore(Path({str(store.folder)!r}), limit=0)
        assert store.read({KEY!r}) is None
        store.trim()
    """
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
    assert [path.name for path in store.folder.iterdir()] == [f"{KEY}.code"]


def test_code_store_follows_no_link_to_its_folder(store: CodeStore, tmp_path: Path, capsys) -> None:
    store.write(KEY, b"code")
    store.folder.rename(tmp_path / "elsewhere")
    store.folder.symlink_to(tmp_path / "elsewhere")
    store.limit = 50
    store.trim()
    store.discard(KEY)
    store.write(OTHER, b"code")
    assert store.read(KEY) is None
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == [f"{KEY}.code"]
    assert "it is a link" in capsys.readouterr().err


@pytest.mark.process
def test_code_store_serves_many_processes_at_once(store: CodeStore) -> None:
    """Processes write the same keys, read and trim; every read returns the complete bytes of one write."""
    program = """if True:
        import random, sys
        from pathlib import Path
        from pathways.runtime.xla.code_store import CodeStore
        seed = int(sys.argv[2])
        store, chance = CodeStore(Path(sys.argv[1]), limit=150_000), random.Random(seed)
        found = 0
        for _ in range(300):
            key = f"{chance.randrange(8):064}"
            if chance.random() < 0.5:
                store.write(key, key.encode() * chance.randrange(1, 1000))
            elif (code := store.read(key)) is not None:
                assert code == key.encode() * (len(code) // 64)
                found += 1
            if chance.random() < 0.1:
                store.trim()
        print(found)
    """
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, store.folder, str(seed)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for seed in range(4)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert all(output.strip().isdigit() and int(output) > 0 for output in outputs), outputs
    assert not list(store.folder.glob("*.tmp"))


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HOME": "/home/ada"}, "/home/ada/.cache/pathways/executables"),
        ({"HOME": "/home/ada", "XDG_CACHE_HOME": "/var/ada"}, "/var/ada/pathways/executables"),
        ({"HOME": "/home/ada", "XDG_CACHE_HOME": "var"}, "/home/ada/.cache/pathways/executables"),
        ({"XDG_CACHE_HOME": "/var/ada", "PW_CACHE_DIR": "/tmp/x"}, "/tmp/x/executables"),
        ({"PW_CACHE_DIR": ""}, None),
        ({"PW_CACHE_DIR": "/tmp/x", "XLA_FLAGS": "--xla_dump_to=/tmp/dump"}, None),
    ],
)
def test_code_store_folder_comes_from_the_environment(
    environment: dict[str, str], folder: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "HOME" in environment:
        monkeypatch.setenv("HOME", environment["HOME"])
    store = from_environment(environment)
    assert (str(store.folder) if store else None) == folder


@pytest.mark.parametrize(
    ("text", "limit"),
    [("", 10**9), ("0", 0), ("123", 123), ("5k", 5000), ("500M", 5 * 10**8), ("2GB", 2 * 10**9)],
)
def test_code_store_limit_comes_from_the_environment(text: str, limit: int) -> None:
    store = from_environment({"PW_CACHE_DIR": "/tmp/x", "PW_CACHE_LIMIT": text})
    assert store is not None
    assert store.limit == limit


@pytest.mark.parametrize("text", ["lots", "-1", "1.5G", "1 GiB", "٣"])
def test_code_store_refuses_an_invalid_limit(text: str) -> None:
    with pytest.raises(ValueError, match=r"PW_CACHE_LIMIT must be a size such as 500M or 2G, got") as caught:
        from_environment({"PW_CACHE_LIMIT": text})
    assert repr(text) in str(caught.value)


@pytest.fixture(autouse=True)
def no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_store, "_reported", set())

"""Listening sockets of the server: safe folders, stale and foreign sockets, and cleanup."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from pathways.runtime.proxy.serving.listening_socket import ListeningSocket, ServerError


@pytest.fixture
def short() -> Iterator[Path]:
    """Yields a folder with a short path, which only this user may enter."""
    folder = Path(f"/tmp/pw-test-{os.getpid()}")
    folder.mkdir(mode=0o700)
    yield folder
    shutil.rmtree(folder)


def test_a_temporary_socket_is_removed_with_its_folder() -> None:
    listener = ListeningSocket(None)
    assert listener.path is not None
    folder = listener.path.parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert listener.target == f"grpc://unix:{folder}/jax"
    listener.close()
    assert not folder.exists()


def test_a_folder_is_created_if_its_parent_exists(tmp_path: Path) -> None:
    ListeningSocket(tmp_path / "own" / "jax").close()
    assert stat.S_IMODE((tmp_path / "own").stat().st_mode) == 0o700
    with pytest.raises(ServerError, match=f"folder {tmp_path}/no does not exist; create it first"):
        ListeningSocket(tmp_path / "no" / "own" / "jax")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ServerError, match=f"folder {tmp_path}/file: File exists"):
        ListeningSocket(tmp_path / "file" / "jax")


def test_a_path_that_clients_would_escape(tmp_path: Path) -> None:
    """gRPC's client would look for `a%20b` instead of `a b`: it gets the path of a link."""
    listener = ListeningSocket(tmp_path / "a b" / "jax")
    link = Path(listener.target.removeprefix("grpc://unix:"))
    assert link.resolve() == tmp_path / "a b" / "jax"
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(link))
    listener.close()
    assert not link.parent.exists()
    assert not (tmp_path / "a b" / "jax").exists()


@pytest.mark.parametrize("mode", [0o711, 0o720, 0o702, 0o755, 0o777])
def test_a_folder_that_others_may_enter_or_write_to(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(ServerError, match=f"use a new folder, such as that of {tmp_path}/private/"):
        ListeningSocket(tmp_path / "jax")


def test_a_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ServerError, match=f"folder {tmp_path} belongs to user"):
        ListeningSocket(tmp_path / "jax")


def test_a_socket_that_is_served(tmp_path: Path) -> None:
    listener = ListeningSocket(tmp_path / "jax")
    with pytest.raises(ServerError, match=f"socket {tmp_path}/jax: another server uses it"):
        ListeningSocket(tmp_path / "jax")
    listener.close()
    assert not (tmp_path / "jax").exists()


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "jax"))
    listener = ListeningSocket(tmp_path / "jax")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "jax"))
        listener.accept().close()
    listener.close()


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_a_path_of_another_kind_of_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "jax"
    match kind:
        case "file":
            path.write_text("mine")
        case "folder":
            path.mkdir()
        case _:
            path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ServerError, match=f"socket {path}: a file of that name exists"):
        ListeningSocket(path)
    assert path.lstat()


def test_close_keeps_a_socket_of_another_server(tmp_path: Path) -> None:
    old = ListeningSocket(tmp_path / "jax")
    (tmp_path / "jax").rename(tmp_path / "old")
    new = ListeningSocket(tmp_path / "jax")
    old.close()
    assert (tmp_path / "jax").is_socket()
    new.close()


def test_the_longest_path(short: Path) -> None:
    longest = short / ("x" * (107 - len(str(short)) - 1))
    ListeningSocket(longest).close()
    with pytest.raises(ServerError, match="its path has 108 bytes, and the system allows 107; use a shorter"):
        ListeningSocket(Path(f"{longest}x"))


def test_an_address() -> None:
    listener = ListeningSocket(("127.0.0.1", 0))
    assert listener.path is None
    port = int(listener.target.removeprefix("grpc://127.0.0.1:"))
    with socket.create_connection(("127.0.0.1", port)):
        listener.accept().close()
    with pytest.raises(ServerError, match=f"cannot listen at 127.0.0.1:{port}: Address already in use"):
        ListeningSocket(("127.0.0.1", port))
    listener.close()


def test_clients_reach_all_addresses_by_the_name_of_the_machine() -> None:
    listener = ListeningSocket(("0.0.0.0", 0))
    assert listener.target.startswith(f"grpc://{socket.gethostname()}:")
    listener.close()

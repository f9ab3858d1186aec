"""Folders of clusters: locks, permissions, and how clients find the service."""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pathways.runtime.control.records.errors import HostError
from pathways.runtime.hosts.protocol.acceptor import Acceptor
from pathways.runtime.hosts.protocol.handshake import ServerHandshake
from pathways.runtime.service.client.attaching import attachment_of
from pathways.runtime.service.protocol.admin import ADMIN_PURPOSE, decode_for_admin, decode_handshake
from pathways.runtime.service.protocol.folders import (
    ClusterFolder,
    address_of,
    call_service,
    clusters,
    clusters_folder,
    find_service,
)
from pathways.runtime.service.protocol.tokens import Credentials


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("PW_CLUSTERS", str(tmp_path / "clusters"))
    return tmp_path / "clusters"


def test_cluster_folder_finds_a_service_by_name(folder):
    lab = ClusterFolder("lab")
    with lab.held():
        secret = lab.secret()
        assert lab.is_held()
        with pytest.raises(
            HostError, match=rf"cluster 'lab' is starting \(process {os.getpid()}\) and not ready"
        ):
            find_service("lab")
        lab.publish(("10.0.0.5", 7070))
        assert find_service("lab") == (("10.0.0.5", 7070), Credentials("", secret))
        assert len(secret) == 64
        assert lab.token.stat().st_mode & 0o777 == 0o600
        assert (folder / "lab").stat().st_mode & 0o777 == 0o700
        assert [cluster.name for cluster in clusters()] == ["lab"]
        # Clients on other machines have a copy of the token.
        copy = folder / "copy"
        copy.write_bytes(secret)
        copy.chmod(0o600)
        assert find_service("10.0.0.5:7070", str(copy)) == (("10.0.0.5", 7070), Credentials("", secret))
    assert clusters() == []
    # The token is kept, so that its copies are valid for the next service, too.
    with lab.held():
        assert lab.secret() == secret
        lab.publish("/a/socket")
        assert find_service("lab")[0] == "/a/socket"


def test_cluster_folder_refuses_a_second_service():
    with ClusterFolder("lab").held():
        with (
            pytest.raises(HostError, match=rf"^cluster 'lab' is starting already \(process {os.getpid()}\)$"),
            ClusterFolder("lab").held(),
        ):
            pass
        ClusterFolder("lab").publish("/a/socket")
        with pytest.raises(HostError, match="is up already"), ClusterFolder("lab").held():
            pass
        assert ClusterFolder("lab").address() == "/a/socket"


@pytest.mark.process
def test_cluster_folder_of_a_killed_service_is_taken_over(folder):
    held = (
        "import time; from pathways.runtime.service.protocol.folders import ClusterFolder\n"
        "lab = ClusterFolder('lab')\n"
        "with lab.held():\n"
        "    lab.secret(); lab.publish('/a/socket'); print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", held], stdout=subprocess.PIPE) as service:
        assert service.stdout is not None
        service.stdout.readline()
        _, credentials = find_service("lab")
        service.send_signal(signal.SIGKILL)
    with pytest.raises(HostError, match=rf"lab' is not up any more: its service \(process {service.pid}\) "):
        find_service("lab")
    lab = ClusterFolder("lab")
    with lab.held():
        assert lab.address() is None
        assert lab.pid() == os.getpid()
        assert lab.secret() == credentials.secret


def test_cluster_folder_reports_a_service_that_is_down(folder):
    with pytest.raises(
        HostError, match=f"^no cluster 'lab' is up: there is no folder {folder}/lab; no cluster is"
    ):
        find_service("lab")
    with (
        ClusterFolder("a").held(),
        ClusterFolder("b").held(),
        pytest.raises(HostError, match=r"running clusters: a, b$"),
    ):
        find_service("lab")
    with pytest.raises(HostError, match=r"^no cluster 'a' is up; no cluster is up$"):
        find_service("a")


@pytest.mark.parametrize("name", ["", ".", "..", "-x", "a b", "a\n", "ä", "x" * 65])
def test_cluster_folder_refuses_wrong_names(name):
    with pytest.raises(ValueError, match="is not a name of a cluster: expected letters, digits"):
        find_service(name)


def test_cluster_folder_refuses_to_be_readable_by_others(folder):
    lab = ClusterFolder("lab")
    with lab.held():
        lab.secret()
        lab.publish("/a/socket")
        lab.token.chmod(0o640)
        with pytest.raises(
            ValueError, match=rf"token='{lab.token}' can be read by others \(mode 0640\): chmod"
        ):
            find_service("lab")
        lab.token.chmod(0o600)
        lab.path.chmod(0o755)
        with pytest.raises(HostError, match=rf"{lab.path}, the folder of cluster 'lab', is open to others"):
            find_service("lab")
    with pytest.raises(HostError, match="is open to others"), lab.held():
        pass
    with pytest.raises(ValueError, match=r"^10\.0\.0\.5:7070: expected token=, the path of a copy"):
        find_service("10.0.0.5:7070")
    with pytest.raises(FileNotFoundError):
        find_service("10.0.0.5:7070", str(folder / "nothing"))


def test_cluster_folder_reports_a_failed_creation(folder):
    folder.write_text("a file")
    with (
        pytest.raises(HostError, match=rf"^cluster 'lab': {folder}: File exists$"),
        ClusterFolder("lab").held(),
    ):
        pass


def test_cluster_folder_location(monkeypatch, tmp_path):
    monkeypatch.delenv("PW_CLUSTERS")
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert clusters_folder() == Path("/home/ann/.local/state/pathways/clusters")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert clusters_folder() == tmp_path / "pathways/clusters"


def test_address_of_parses_host_and_port():
    assert address_of("a.lan:1") == ("a.lan", 1)
    assert [address_of(text) for text in ("a", ":1", "a:", "a:b", "a:65536", "a:1\n", "[::1]:1")] == [
        None
    ] * 7


def test_cluster_folder_reports_a_service_that_does_not_answer():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        where = f"^the service at 127.0.0.1:{address[1]} "
        make_handshake = functools.partial(ServerHandshake, b"s" * 32, lambda _: True)
        Acceptor(server, make_handshake, decode_handshake, lambda connection, _: connection.close())
        call_service(address, b"s" * 32, ADMIN_PURPOSE, decode_for_admin).close()
        with pytest.raises(HostError, match=f"{where}rejects this token: it belongs to another cluster"):
            call_service(address, b"o" * 32, ADMIN_PURPOSE, decode_for_admin)
        server.shutdown(socket.SHUT_RDWR)
    with pytest.raises(HostError, match=f"{where}does not answer: Connection refused"):
        call_service(address, b"s" * 32, ADMIN_PURPOSE, decode_for_admin)
    with pytest.raises(HostError, match=r"^the service at /no/socket does not answer: No such file"):
        call_service("/no/socket", b"s" * 32, ADMIN_PURPOSE, decode_for_admin)


@pytest.mark.parametrize("name", ["ray", "slurm", "join", "ssh"])
def test_cluster_folder_has_no_name_of_a_launcher(name: str):
    with pytest.raises(ValueError, match=f"'{name}' is a launcher, and not a name of a cluster"):
        ClusterFolder(name)


def test_cluster_folder_names_a_missing_token(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"token: No such file or directory: .*none"):
        find_service("127.0.0.1:9", str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"token='a\\x00b': .*embedded null"):
        find_service("127.0.0.1:9", "a\0b")
    with pytest.raises(TypeError, match="expected the name or the address of a cluster, got 5"):
        attachment_of(5, None, None)
    with pytest.raises(TypeError, match="token must be the path of a file, got 5"):
        attachment_of("lab", None, 5)

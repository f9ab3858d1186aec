"""Clusters as `pw-cluster` shows them: how they begin, what they are at, and all ways in which they end.

The process of the service is the real one, with a service behind it that starts no workers.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pathways.runtime.control.records.errors import HostError
from pathways.runtime.hosts.protocol.messages import Ping, Purpose
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.service.protocol.admin import (
    ADMIN_PURPOSE,
    StatusReply,
    StatusRequest,
    decode_for_admin,
    decode_handshake,
)
from pathways.runtime.service.protocol.folders import ClusterFolder, call_service, find_service
from pathways.runtime.service.protocol.tokens import credentials_of
from pathways.tools import pw_cluster
from pathways.tools.drivers import cluster

pytestmark = pytest.mark.process

SUPPORT = Path(__file__).parents[1] / "support"
FILE = "hosts = 2\n[clients.ann]\nweight = 2.0\n"
ADDING = "pw-cluster: lab: adding an island of 1 host ...\n"
TOOL = (
    "import sys; from pathways.tools.drivers import cluster; from pathways.tools import pw_cluster;"
    "cluster.PROCESS = 'fake_service'; sys.exit(pw_cluster.main())"
)


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("c")
        patch.setenv("PW_CLUSTERS", str(folder))
        patch.setenv("PYTHONPATH", str(SUPPORT))
        patch.setattr(cluster, "PROCESS", "fake_service")
        (folder / "lab.toml").write_text(FILE)
        yield folder


@pytest.fixture(scope="module")
def lab(folder) -> Iterator[ClusterFolder]:
    """A cluster that is up."""
    assert pw_cluster.main(["up", f"{folder}/lab.toml"]) == 0
    yield ClusterFolder("lab")
    assert pw_cluster.main(["down", "lab"]) == 0
    assert not ClusterFolder("lab").is_held()


@contextlib.contextmanager
def started(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """The tool in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", TOOL, *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait(known) -> None:
    deadline = time.monotonic() + 30
    while not known():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def status(name: str) -> StatusReply:
    address, credentials = find_service(name)
    connection = call_service(address, credentials.secret, ADMIN_PURPOSE, decode_for_admin)
    connection.send(StatusRequest())
    answer = connection.receive()
    connection.close()
    assert isinstance(answer, StatusReply)
    return answer


@pytest.mark.quick
def test_pw_cluster_shows_the_status_of_a_cluster(lab, capfd):
    address, credentials = find_service("lab")
    ann = call_service(
        address, credentials.secret, Purpose("watch", "client", 0, 0, "service", "ann"), decode_for_admin
    )
    wait(lambda: status("lab").status.clients)
    capfd.readouterr()
    assert pw_cluster.main(["status", "lab", "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert 0 < shown["since"] <= shown["clients"][0]["since"] <= shown["time"] <= time.time()
    assert shown == {
        "pid": lab.pid(),
        "islands": [
            {
                "name": f"island{n}",
                "state": "running",
                "hosts": [
                    {
                        "host": n,
                        "pid": lab.pid(),
                        "arrays": 0,
                        "bytes": 0,
                        "machine": "box",
                        "address": "127.0.0.1",
                        "since": shown["since"],
                    }
                ],
                "devices": 1,
                "free_memory": None,
                "losses": 0,
                "problem": None,
            }
            for n in range(2)
        ],
        "clients": [
            {
                "name": "ann",
                "weight": 2.0,
                "steps_done": 0,
                "queued": 0,
                "device_seconds": 0.0,
                "arrays": 0,
                "bytes": 0,
                "user": None,
                "machine": None,
                "process": None,
                "address": "this machine",
                "since": shown["clients"][0]["since"],
                "islands": [],
                "slices": [],
                "priority": 0,
                "quota": None,
                "is_suspended": False,
                "held": None,
            }
        ],
        "spares": None,
        "since": shown["since"],
        "time": shown["time"],
    }
    assert pw_cluster.main(["status", "lab"]) == 0
    row = "  ann     2       0           0       0 s          0       0 B    0 s    -\n"
    assert row in capfd.readouterr().out
    assert pw_cluster.main(["end", "lab", "bo"]) == 1
    assert capfd.readouterr().err == "pw-cluster: error: lab: there is no client 'bo'; there are: ann\n"
    assert pw_cluster.main(["end", "lab", "ann"]) == 0
    with pytest.raises(ConnectionEnded):
        ann.receive()
    ann.close()
    assert pw_cluster.main(["list"]) == 0
    assert capfd.readouterr().out == (
        f"  cluster  process  address\n  lab      {lab.pid():<7}  {lab.socket}\n"
    )
    assert pw_cluster.main(["logs", "lab"]) == 0
    assert "client 'ann' disconnected\n" in capfd.readouterr().out


@contextlib.contextmanager
def attached(name: str, token: Path) -> Iterator[Connection[Any]]:
    """The first connection of a client to the cluster lab, once it is shown in the status."""
    purpose = Purpose("watch", "client", 0, 0, "service", name)
    secret = credentials_of(str(token)).secret
    with contextlib.closing(
        call_service(find_service("lab")[0], secret, purpose, decode_for_admin)
    ) as connection:
        wait(lambda: name in clients())
        yield connection


def clients() -> list[str]:
    """Returns the names of the clients of the cluster lab."""
    return [client.name for client in status("lab").status.clients]


@pytest.mark.quick
def test_pw_cluster_issues_tokens_of_clients(lab, tmp_path, capfd):
    file = tmp_path / "ann.token"
    assert pw_cluster.main(["token", "lab", "ann", "-o", str(file)]) == 0
    assert file.stat().st_mode & 0o777 == 0o600
    capfd.readouterr()
    assert pw_cluster.main(["token", "lab", "ann"]) == 0
    assert capfd.readouterr().out == file.read_text()
    with attached("ann", file) as ann, attached("bo", lab.token):
        with (
            pytest.raises(HostError, match=r"rejects this token: .*, or was revoked$"),
            attached("cy", file),
        ):
            pass
        for arguments, action in (
            (["down", "lab"], "the request"),
            (["end", "lab", "bo"], "ending client 'bo'"),
            (["token", "lab", "ann", "--revoke"], "the request"),
            (["add", "lab", "--hosts", "1"], "the request"),
        ):
            assert pw_cluster.main([*arguments, "--token", str(file)]) == 1
            assert capfd.readouterr().err.removeprefix(ADDING) == (
                f"pw-cluster: error: {action} needs the token of the cluster, "
                "and this one is of client 'ann'\n"
            )
        # By the address of the service, as on another machine.
        assert pw_cluster.main(["status", str(lab.socket), "--token", str(file)]) == 0
        assert "\n  bo      1 " in capfd.readouterr().out
        assert pw_cluster.main(["end", "lab", "ann", "--token", str(file)]) == 0
        with pytest.raises(ConnectionEnded):
            ann.receive()
        assert clients() == ["bo"]
        assert pw_cluster.main(["end", "lab", "bo"]) == 0


def test_pw_cluster_adds_an_island(lab, folder, capfd):
    capfd.readouterr()
    assert pw_cluster.main(["add", "lab", "--hosts", "1", "--devices-per-host", "4"]) == 0
    assert capfd.readouterr() == ("island2\n", ADDING)
    assert pw_cluster.main(["add", "lab", "--hosts", "box"]) == 1
    refused = "pw-cluster: error: hosts=('box',): expected a number of hosts, as the other islands have\n"
    assert capfd.readouterr() == ("", ADDING + refused)
    # By the address of the service.
    assert pw_cluster.main(["add", str(lab.socket), "--token", str(lab.token), "--hosts", "2"]) == 0
    assert capfd.readouterr().out == "island3\n"


def test_pw_cluster_cancels_an_island_when_it_is_interrupted(lab):
    with started("add", "lab", "--hosts", "slow") as process:
        assert process.stderr.readline() == ADDING
        process.send_signal(signal.SIGINT)
        assert process.wait(30) != 0
    wait(lambda: "adding an island was cancelled" in lab.log.read_text())


def test_pw_cluster_revokes_tokens(lab, tmp_path, capfd):
    old, new, other = (tmp_path / name for name in ("old", "new", "bo"))
    for name, file in (("ann", old), ("bo", other)):
        assert pw_cluster.main(["token", "lab", name, "-o", str(file)]) == 0
    with attached("bo", other):
        with attached("ann", old) as ann, started("status", "lab", "--watch", "--token", str(old)) as watch:
            assert watch.stdout.readline()
            assert pw_cluster.main(["token", "lab", "ann", "--revoke", "-o", str(new)]) == 0
            with pytest.raises(ConnectionEnded):
                ann.receive()
            _, error = watch.communicate(timeout=30)
        assert error == "pw-cluster: error: this token of client 'ann' was revoked\n"
        capfd.readouterr()
        assert pw_cluster.main(["status", "lab", "--token", str(old)]) == 1
        assert "rejects this token: it belongs to another cluster, or was revoked\n" in capfd.readouterr().err
        assert pw_cluster.main(["status", "lab", "--token", str(new)]) == 0
        # A client that has attached with the token of the cluster stays.
        with attached("ann", lab.token):
            assert pw_cluster.main(["token", "lab", "ann", "--revoke"]) == 0
            assert clients() == ["bo", "ann"]
        for name in ("ann", "bo"):
            assert pw_cluster.main(["end", "lab", name]) == 0


def test_pw_cluster_writes_no_token_where_others_may_read_it(lab, tmp_path, capfd):
    """Tokens stay valid then."""
    (tmp_path / "open").touch(0o644)
    (tmp_path / "link").symlink_to(lab.token)
    capfd.readouterr()
    assert pw_cluster.main(["token", "lab", "cy"]) == 0
    token = capfd.readouterr().out
    for name, error in (
        ("open", "{} is open to others (mode 0644): remove it, or choose another file"),
        ("link", "{} is not a regular file"),
        (".", "{} is not a regular file"),
        ("none/token", "{}: no file can be created in {.parent}"),
    ):
        file = tmp_path / name
        assert pw_cluster.main(["token", "lab", "cy", "--revoke", "-o", str(file)]) == 1
        assert capfd.readouterr().err == f"pw-cluster: error: {error.format(file, file)}\n"
    assert pw_cluster.main(["token", "lab", "cy"]) == 0
    assert capfd.readouterr().out == token


def test_pw_cluster_does_not_start_with_a_damaged_list_of_revoked_tokens(folder, capfd):
    damaged = ClusterFolder("damaged")
    damaged.path.mkdir(0o700)
    damaged.revoked.write_text("[]")
    assert pw_cluster.main(["up", f"{folder}/lab.toml", "--name", "damaged"]) == 1
    assert f"error: {damaged.revoked}, the list of revoked tokens, is damaged: " in capfd.readouterr().err


def test_pw_cluster_starts_no_second_cluster_of_a_name(lab, folder, capfd):
    pid = lab.pid()
    assert pw_cluster.main(["up", f"{folder}/lab.toml"]) == 1
    error = f"pw-cluster: error: cluster 'lab' is up already (process {pid})\n"
    assert capfd.readouterr().err == error
    assert status("lab").status.pid == pid
    # The log is still that of the first.
    assert "is up already" not in lab.log.read_text()


def test_pw_cluster_survives_strangers_at_its_socket(lab):
    """Clients are served after messages of any bytes."""
    address, credentials = find_service("lab")
    assert isinstance(address, str)
    for message in (
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        os.urandom(100),
        b"PW\x09\x00\xff\xff\xff\xff\x00\x00\x00\x00",
    ):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(address)
            stranger.sendall(message)
    with pytest.raises(HostError, match="rejects this token: it belongs to another cluster"):
        call_service(address, b"x" * 64, ADMIN_PURPOSE, decode_for_admin)
    # Who knows the secret, but says what has no sense.
    wrong = call_service(address, credentials.secret, ADMIN_PURPOSE, decode_handshake)
    wrong.send(Ping(1))
    with pytest.raises(ConnectionEnded):
        wrong.receive()
    wrong.close()
    for purpose in (Purpose("admin", "worker", 0, 0, "service"), Purpose("steps", "client", 0, 0, "service")):
        with pytest.raises(HostError, match="rejects this token"):
            call_service(address, credentials.secret, purpose, decode_for_admin)
    assert status("lab").status.pid == lab.pid()


def test_pw_cluster_starts_anew_after_a_kill(folder, capfd):
    arguments = ["up", f"{folder}/lab.toml", "--name", "killed"]
    assert pw_cluster.main(arguments) == 0
    killed = ClusterFolder("killed")
    pid, (_, credentials) = killed.pid(), find_service("killed")
    os.kill(pid, signal.SIGKILL)
    wait(lambda: not killed.is_held())
    capfd.readouterr()
    assert pw_cluster.main(["status", "killed"]) == 1
    assert (
        f"killed' is not up any more: its service (process {pid}) was killed; see " in capfd.readouterr().err
    )
    assert pw_cluster.main(arguments) == 0
    assert find_service("killed")[1] == credentials
    # As a service manager ends it.
    os.kill(killed.pid(), signal.SIGTERM)
    wait(lambda: not killed.is_held())
    assert [line.split("INFO ")[1] for line in killed.log.read_text().splitlines()[-2:]] == [
        "shutting down: SIGTERM",
        "shut down",
    ]
    assert pw_cluster.main(["down", "killed"]) == 1
    assert "error: no cluster 'killed' is up" in capfd.readouterr().err


def test_pw_cluster_reports_why_a_cluster_does_not_start(folder, capfd, monkeypatch):
    monkeypatch.setenv("FAKE_SERVICE", "fails")
    assert pw_cluster.main(["up", f"{folder}/lab.toml", "--name", "failed"]) == 1
    assert capfd.readouterr().err == (
        "pw-cluster: cluster 'failed': starting 2 hosts ...\n"
        "pw-cluster: error: host 1 did not start (exit code 3)\n  | it has no JAX\n"
    )
    assert pw_cluster.main(["logs", "failed"]) == 0
    assert "ERROR host 1 did not start" in capfd.readouterr().out
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (folder / "taken.toml").write_text(f"hosts = 1\nlisten = '127.0.0.1:{taken.getsockname()[1]}'")
        assert pw_cluster.main(["up", f"{folder}/taken.toml"]) == 1
    assert "error: cannot listen at 127.0.0.1:" in capfd.readouterr().err
    # The mode of the secret is checked before the address to join is announced.
    (folder / "secret").touch(0o644)
    (folder / "open.toml").write_text(
        "launcher = 'join'\nhosts = 1\nsecret_file = 'secret'\nbind = '127.0.0.1'\nports = [7000, 7009]"
    )
    assert pw_cluster.main(["up", f"{folder}/open.toml"]) == 1
    assert re.fullmatch(
        r"pw-cluster: error: secret_file='\S+' can be read by others \(mode 0644\): .*\n",
        capfd.readouterr().err,
    )
    monkeypatch.setenv("PW_CLUSTERS", f"{folder}/{'x' * 100}")
    assert pw_cluster.main(["up", f"{folder}/lab.toml"]) == 1
    assert "is too long for the path of a socket (100 bytes at most): set PW_" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_pw_cluster_ends_a_starting_cluster_with_itself(folder, number):
    stuck = ClusterFolder(f"stuck{number}")
    with started("up", f"{folder}/lab.toml", "--name", stuck.name, FAKE_SERVICE="stuck") as up:
        wait(lambda: stuck.log.exists() and "starting 2 hosts" in stuck.log.read_text())
        up.send_signal(number)
        _, errors = up.communicate(timeout=30)
    wait(lambda: not stuck.is_held())
    if number == signal.SIGINT:
        assert (up.returncode, errors.splitlines()[-1]) == (130, "pw-cluster: interrupted")


def test_pw_cluster_down_ends_a_starting_cluster(folder):
    stuck = ClusterFolder("stuck")
    with started("up", f"{folder}/lab.toml", "--name", "stuck", FAKE_SERVICE="stuck") as up:
        wait(lambda: stuck.log.exists() and "starting 2 hosts" in stuck.log.read_text())
        assert pw_cluster.main(["down", "stuck"]) == 0
        _, errors = up.communicate(timeout=30)
    assert errors.splitlines()[-1] == "pw-cluster: error: the service was ended before it was ready"


@pytest.mark.parametrize("is_ready", [True, False])
def test_pw_cluster_down_returns_when_the_service_has_exited(folder, monkeypatch, is_ready):
    """Frees devices, ports and memory for what runs next."""
    monkeypatch.setenv("FAKE_SERVICE", "lingers")
    late = ClusterFolder("late")
    assert pw_cluster.main(["up", f"{folder}/lab.toml", "--name", "late"]) == 0
    pid = late.pid()
    if not is_ready:
        # As while it starts: then it gets a signal.
        (late.path / "address").unlink()
    assert pw_cluster.main(["down", "late"]) == 0
    assert os.waitpid(pid, os.WNOHANG) == (pid, 0)


@pytest.mark.quick
def test_pw_cluster_runs_in_the_foreground_at_an_address(folder, capfd):
    (folder / "front.toml").write_text("hosts = 2\nlisten = '127.0.0.1:0'\ntoken = 'copy'")
    (folder / "copy").write_text("0123456789abcdef\n")
    (folder / "copy").chmod(0o600)
    front = ClusterFolder("front")
    with started("up", "--foreground", f"{folder}/front.toml") as up:
        wait(lambda: front.is_held() and front.address())
        # The process that was started, not one of its children.
        assert front.pid() == up.pid
        host, port = front.address()
        assert pw_cluster.main(["status", f"{host}:{port}", "--token", f"{folder}/copy", "--json"]) == 0
        assert json.loads(capfd.readouterr().out)["pid"] == up.pid
        assert pw_cluster.main(["logs", "front"]) == 1
        assert "front' runs in the foreground: its log is its standard error" in capfd.readouterr().err
        up.terminate()
        _, errors = up.communicate(timeout=30)
    assert up.returncode == 0
    assert "INFO cluster 'front' is up: 2 islands, 2 hosts, process" in errors
    assert errors.splitlines()[-1].endswith("INFO shut down")


def test_pw_cluster_follows_logs_until_the_end(folder, capfd):
    assert pw_cluster.main(["up", f"{folder}/lab.toml", "--name", "followed"]) == 0
    with started("logs", "followed", "--follow") as logs:
        assert logs.stdout.readline().endswith("INFO cluster 'followed': starting 2 hosts\n")
        assert pw_cluster.main(["down", "followed"]) == 0
        rest, _ = logs.communicate(timeout=30)
    assert rest.endswith("INFO shut down\n")


@pytest.mark.quick
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [],
            "expected a command: up, add, list, status, accounts, run, token, set, suspend, resume, drain, "
            "undrain, end, down, logs; see pw-cluster --help",
        ),
        (
            ["upp"],
            "argument COMMAND: must be one of up, add, list, status, accounts, run, token, set, suspend,",
        ),
        (["up"], "pw-cluster up: expected FILE"),
        (["end", "lab"], "pw-cluster end: expected CLIENT"),
        (["status", "lab", "x"], "unexpected argument 'x'"),
        (["down", "--follow", "lab"], "--follow is for pw-cluster logs"),
        (["up", "/nowhere/lab.toml"], "/nowhere/lab.toml: No such file or directory"),
        (
            ["up", "{}/lab.toml", "--name", "a b"],
            "'a b' is not a name of a cluster: expected letters, digits",
        ),
        (["status", "nothing"], "no cluster 'nothing' is up: there is no folder "),
        (["status", "10.0.0.5:7070"], "10.0.0.5:7070: expected token=, the path of a copy of the token"),
        (["status", "10.0.0.5:7070", "--token", "/nowhere"], "/nowhere: token: No such file or directory"),
        (["logs", "nothing"], "cluster 'nothing' has no log: there is no file "),
        (["token", "lab"], "pw-cluster token: expected CLIENT"),
        (["set", "lab", "ann"], "pw-cluster set: expected RULE=VALUE"),
        (["set", "lab", "ann", "wait=4"], "wait=4: expected one of weight=VALUE, priority=VALUE, memory="),
        (["set", "lab", "ann", "weight"], "weight: expected one of weight=VALUE, priority=VALUE, memory="),
        (["set", "lab", "ann", "weight=0"], "weight=0: Expected `float` >= 0.001"),
        (["set", "lab", "ann", "memory=4"], "memory=4: '4': expected a number of bytes with a unit, as in"),
        (["token", "lab", "a b"], "'a b' is not a name of a client: expected letters, digits"),
        (["add", "lab"], "pw-cluster add: expected --hosts"),
        (["add", "lab", "--hosts", "0"], "argument --hosts: must be at least 1, got 0"),
        (["add", "lab", "--hosts", "1", "--pool", "4"], "'4': expected a number of bytes with a unit, as in"),
        (["drain", "lab", "island0", "--grace", "abc"], "argument --grace: abc: expected 0 to 1e+06 seconds"),
        (["add", "lab", "--hosts", "99999"], "hosts = 99999: expected a number of hosts, or names"),
    ],
)
def test_pw_cluster_refuses_mistakes(folder, capfd, arguments, message):
    assert pw_cluster.main([word.format(folder) for word in arguments]) == 1
    error = capfd.readouterr().err
    assert error.startswith(f"pw-cluster: error: {message}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("up", {"--name", "--foreground"}),
        ("list", set()),
        ("status", {"--json", "--watch", "--token"}),
        ("run", {"--client", "--files", "--islands", "--token", "--with-cpu"}),
        ("accounts", {"--by", "--json", "--token"}),
        ("end", {"--token"}),
        ("down", {"--token"}),
        ("logs", {"--follow"}),
        ("token", {"--revoke", "--token"}),
        ("add", {"--hosts", "--devices-per-host", "--cores", "--device-memory", "--pool", "--token"}),
    ],
)
def test_pw_cluster_helps_with_each_command(capfd, command, flags):
    assert pw_cluster.main([command, "--help"]) == 0
    text = capfd.readouterr().out
    assert text.startswith(f"usage: pw-cluster {command}")
    assert set(re.findall(r"^  (--[\w-]+)", text, re.MULTILINE)) == flags
    assert pw_cluster.main(["--help"]) == 0
    text = capfd.readouterr().out
    assert f"  pw-cluster {command} " in text
    assert all(flag in text for flag in flags)


def test_pw_cluster_service_imports_no_jax():
    code = "import sys, pathways.runtime.service.daemon; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_pw_cluster_serves_metrics_and_a_page(folder, capfd, monkeypatch):
    """A page is there from the start to the end of the cluster; a port that is in use is an error."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        (folder / "page.toml").write_text(f"[metrics]\nport = {port}\n[[islands]]\n")
        assert pw_cluster.main(["up", f"{folder}/page.toml"]) == 1
        error = capfd.readouterr().err.splitlines()[-1]
        assert (
            error
            == f"pw-cluster: error: [metrics]: cannot listen at 127.0.0.1:{port}: Address already in use"
        )
    assert pw_cluster.main(["up", f"{folder}/page.toml"]) == 0
    assert f"; page http://127.0.0.1:{port}/" in capfd.readouterr().out
    deadline = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/status.json", timeout=10) as reply:
                served = json.loads(reply.read())
                break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert pw_cluster.main(["status", "page", "--json"]) == 0
    status = json.loads(capfd.readouterr().out)
    assert served.keys() == status.keys()
    assert served["islands"] == status["islands"]
    assert pw_cluster.main(["down", "page"]) == 0
    with socket.create_server(("127.0.0.1", port)):
        pass

"""Tokens of clients: their handshake, their revocation, and the requests that they allow."""

from __future__ import annotations

import contextlib
import socket
import string
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from pathways.runtime.hosts.launch.settings import Island, Settings
from pathways.runtime.hosts.protocol.handshake import ClientHandshake
from pathways.runtime.hosts.protocol.messages import Handshake, Message, MessageError, Purpose
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.service.admission import Admission
from pathways.runtime.service.client.attaching import attachment_of
from pathways.runtime.service.daemon import _why_denied
from pathways.runtime.service.protocol.admin import (
    ADMIN,
    AccountsRequest,
    AddRequest,
    ChangeRequest,
    DisconnectRequest,
    DrainRequest,
    FromAdmin,
    ReturnRequest,
    ShutdownRequest,
    StatusRequest,
    TokenRequest,
    decode_handshake,
)
from pathways.runtime.service.protocol.folders import ClusterFolder
from pathways.runtime.service.protocol.service_messages import AdmissionDenied, decode_for_client
from pathways.runtime.service.protocol.tokens import (
    ClientTokens,
    Credentials,
    ServiceHandshake,
    credentials_of,
)
from pathways.runtime.service.sharing.rules import RuleBook, SharingRules

SECRET = b"s" * 64
NOWHERE = Path("/nowhere/revoked")

names = st.text(string.ascii_letters + string.digits + "_.-", min_size=1, max_size=64)


@pytest.fixture
def tokens(tmp_path) -> ClientTokens:
    return ClientTokens(SECRET, tmp_path / "revoked")


def authenticated(
    tokens: ClientTokens,
    secret: bytes,
    name: str,
    channel: str = "watch",
    role: str = "client",
    epoch: int = 0,
) -> ServiceHandshake:
    """Performs a handshake with a service; returns the state of the side of the service."""
    service = ServiceHandshake(tokens, lambda _: True, b"b" * 32)
    client = ClientHandshake(secret, Purpose(channel, role, 0, epoch, "service", name), b"a" * 32)
    message: Message | None = client.first
    while message is not None:
        message = client.on_message(service.on_message(message))
    return service


def write_token(path: Path, text: str) -> Path:
    path.touch(0o600)
    path.write_text(f"{text}\n")
    return path


def test_a_token_of_a_client_is_valid_under_its_name(tokens):
    assert authenticated(tokens, tokens.secret_of("ann"), "ann").token_of == "ann"
    assert authenticated(tokens, SECRET, "ann").token_of is None
    assert authenticated(tokens, SECRET, "").token_of is None
    for secret, name in (
        (tokens.secret_of("ann"), "bo"),
        (tokens.secret_of("ann"), ""),
        (b"o" * 64, "ann"),
        (b"", "ann"),
    ):
        with pytest.raises(MessageError, match="it does not know the secret of this cluster"):
            authenticated(tokens, secret, name)


@given(names, names)
@settings(max_examples=examples(50), deadline=None)
def test_a_token_is_of_one_name_and_one_cluster(name, other):
    tokens = ClientTokens(SECRET, NOWHERE)
    secret = tokens.secret_of(name)
    assert (secret == tokens.secret_of(other)) == (name == other)
    assert secret != ClientTokens(b"o" * 64, NOWHERE).secret_of(name)


def test_a_revoked_token_is_invalid_for_later_services_too(tokens, tmp_path):
    first = tokens.secret_of("ann")
    connected = authenticated(tokens, first, "ann")
    of_cluster, bo = authenticated(tokens, SECRET, "ann"), authenticated(tokens, tokens.secret_of("bo"), "bo")
    tokens.revoke("ann")
    second = tokens.secret_of("ann")
    tokens.revoke("ann")
    assert (tmp_path / "revoked").stat().st_mode & 0o777 == 0o600
    assert connected.is_revoked()
    assert not of_cluster.is_revoked()
    assert not bo.is_revoked()
    for service in (tokens, ClientTokens(SECRET, tmp_path / "revoked")):
        for secret in (first, second):
            with pytest.raises(MessageError, match="it does not know the secret"):
                authenticated(service, secret, "ann")
        assert not authenticated(service, service.secret_of("ann"), "ann").is_revoked()
        authenticated(service, bo.secret, "bo")


def test_tokens_stay_valid_if_the_revocation_cannot_be_written(tmp_path):
    tokens = ClientTokens(SECRET, tmp_path / "none" / "revoked")
    connected = authenticated(tokens, tokens.secret_of("ann"), "ann")
    with pytest.raises(FileNotFoundError):
        tokens.revoke("ann")
    assert not connected.is_revoked()


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"ann": "1"}', b'{"ann": 0}', b"\xff"])
def test_a_damaged_list_of_revoked_tokens_is_an_error(tmp_path, content):
    (tmp_path / "revoked").write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{tmp_path}/revoked, the list of revoked tokens, is damaged: "):
        ClientTokens(SECRET, tmp_path / "revoked")


@given(names)
@settings(max_examples=examples(25), deadline=None)
def test_a_token_file_has_the_name_of_its_client(tmp_path_factory, name):
    tokens = ClientTokens(SECRET, NOWHERE)
    file = write_token(tmp_path_factory.mktemp("t") / "token", tokens.token_of(name))
    assert credentials_of(str(file)) == Credentials(name, tokens.secret_of(name))
    assert tokens.secret_of(name).hex() not in repr(credentials_of(str(file)))


def test_any_other_secret_is_that_of_a_cluster(tmp_path):
    for text in ("f" * 64, f"ann:{'f' * 63}", f"ann:{'g' * 64}", f"ann/bo:{'f' * 64}"):
        file = write_token(tmp_path / "token", text)
        assert credentials_of(str(file)) == Credentials("", text.encode())


def test_a_cluster_refuses_the_token_of_a_client(tmp_path, tokens):
    file = write_token(tmp_path / "token", tokens.token_of("ann"))
    with pytest.raises(ValueError, match=f"^{file} is a token of client 'ann': expected that of a cluster$"):
        ClusterFolder("lab").secret(file)


def test_a_client_is_named_by_its_token(tmp_path, tokens):
    file = write_token(tmp_path / "token", tokens.token_of("ann"))
    assert attachment_of("lab", None, file).client == "ann"
    assert attachment_of("lab", "ann", file).client == "ann"
    with pytest.raises(
        ValueError,
        match=f"^{file} is a token of client 'ann', not of 'bo': connect as 'ann', or use a token of 'bo'$",
    ):
        attachment_of("lab", "bo", file)


@contextlib.contextmanager
def accepted(admission: Admission, handshake: ServiceHandshake) -> Iterator[Connection[Any]]:
    """Passes an authenticated connection to the admission of a service; yields the other end."""
    here, there = socket.socketpair()
    with (
        contextlib.closing(Connection(here, decode_for_client)) as client,
        contextlib.closing(Connection(there, decode_handshake)) as connection,
    ):
        admission.accept(connection, handshake)
        client.set_timeout(5)
        yield client


@pytest.fixture
def admission() -> Iterator[Admission]:
    pool = SimpleNamespace(gangs=[])
    admission = Admission(
        Settings((Island(),)), RuleBook(SharingRules()), pool, lambda _: None, lambda *_: None
    )
    yield admission
    for client in admission.clients.values():
        client.disconnected.set()


def test_a_client_whose_token_was_revoked_during_its_handshake_is_not_admitted(tokens, admission):
    handshake = authenticated(tokens, tokens.secret_of("ann"), "ann")
    tokens.revoke("ann")
    with accepted(admission, handshake) as ann:
        assert ann.receive() == AdmissionDenied("its token was revoked")


@pytest.mark.parametrize("is_first_of_cluster", [True, False])
def test_all_connections_of_a_client_have_the_same_token(tokens, admission, is_first_of_cluster):
    secrets = [SECRET, tokens.secret_of("ann")]
    first, second = secrets if is_first_of_cluster else reversed(secrets)
    with accepted(admission, authenticated(tokens, first, "ann")) as ann:
        number = ann.receive().client
        wrong = authenticated(tokens, second, "ann", "steps", epoch=number)
        with accepted(admission, wrong) as steps, pytest.raises(ConnectionEnded, match=r"has ended$"):
            steps.receive()
        with accepted(admission, authenticated(tokens, first, "ann", "steps", epoch=number)):
            assert {*admission.find("ann").connections} == {"watch", "steps"}


def test_the_token_of_a_client_allows_its_status_and_its_end_only(tokens):
    """Also of requests that are added later, all others are denied."""

    class LaterRequest(Message, frozen=True):
        """Request of a later version."""

    ann = authenticated(tokens, tokens.secret_of("ann"), "ann", ADMIN, ADMIN)
    allowed = [StatusRequest(), DisconnectRequest("ann")]
    denied = [
        DisconnectRequest("bo"),
        ShutdownRequest(),
        TokenRequest("ann", revoke=False),
        ChangeRequest("ann", weight=1000.0),
        AccountsRequest(),
        DrainRequest("island0", 60.0),
        ReturnRequest("island0"),
        AddRequest(2),
        LaterRequest(),
    ]
    # A request that is added later belongs in one of the lists.
    assert set(get_args(FromAdmin)) - set(get_args(Handshake)) <= {*map(type, allowed), *map(type, denied)}
    assert [_why_denied(request, ann) for request in allowed] == [None, None]
    assert [_why_denied(request, ann) for request in denied] == [
        f"{action} needs the token of the cluster, and this one is of client 'ann'"
        for action in ("ending client 'bo'", *["the request"] * 8)
    ]
    of_cluster = authenticated(tokens, SECRET, "ann", ADMIN, ADMIN)
    assert [_why_denied(request, of_cluster) for request in allowed + denied] == [None] * 11
    tokens.revoke("ann")
    assert _why_denied(StatusRequest(), ann) == "this token of client 'ann' was revoked"

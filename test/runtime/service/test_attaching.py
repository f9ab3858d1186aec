"""Default names of clients, and the user, machine and process that the service shows."""

from __future__ import annotations

import os

import msgspec
import pytest

from pathways.runtime.hosts.protocol.messages import MessageError
from pathways.runtime.service.client import attaching
from pathways.runtime.service.client.attaching import attachment_of, origin_of
from pathways.runtime.service.protocol.service_messages import ClientOrigin, decode_for_service


@pytest.mark.parametrize(
    ("user", "name"),
    [
        ("jan", "jan"),
        ("jan@corp", "jan_corp"),
        ("CORP\\jan", "CORP_jan"),
        ("müller", "m_ller"),
        ("Jan Doe", "Jan_Doe"),
        (".jan-doe", "_jan-doe"),
        ("x" * 90, "x" * 50),
    ],
)
def test_attaching_accepts_any_user_name(user, name, monkeypatch):
    monkeypatch.setattr(attaching.getpass, "getuser", lambda: user)
    assert attachment_of("lab", None, None).client == f"{name}-{os.getpid()}"


@pytest.mark.parametrize("error", [KeyError("getpwuid(): uid not found: 1234"), OSError("No username set")])
def test_attaching_accepts_a_user_without_name(error, monkeypatch):
    def fail():
        raise error

    monkeypatch.setattr(attaching.getpass, "getuser", fail)
    assert attachment_of("lab", None, None).client == f"uid{os.getuid()}-{os.getpid()}"


def test_attaching_keeps_a_given_name():
    assert attachment_of("lab", "jan", None).client == "jan"
    with pytest.raises(ValueError, match="'jan@corp' is not a name of a client"):
        attachment_of("lab", "jan@corp", None)


def test_attaching_sends_a_user_and_a_machine_that_print(monkeypatch):
    monkeypatch.setattr(attaching.getpass, "getuser", lambda: "müller\x1b[2J")
    monkeypatch.setattr(attaching.socket, "gethostname", lambda: "m" * 90)
    assert origin_of(4711) == ClientOrigin("müller?[2J", "m" * 64, 4711)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"user": "u" * 65}, "must have at most 64 printable characters"),
        ({"machine": "box\n"}, "must have at most 64 printable characters"),
        ({"process": -1}, "Expected `int` >= 0"),
        ({"user": 1}, "Expected `str`, got `int`"),
    ],
)
def test_service_accepts_no_other_origin(fields, error):
    message = {"type": "ClientOrigin", "user": "ann", "machine": "box", "process": 1, **fields}
    with pytest.raises(MessageError, match=f"a message cannot be read: .*{error}"):
        decode_for_service(msgspec.msgpack.encode(message))

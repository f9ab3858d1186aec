"""Default names of clients."""

from __future__ import annotations

import os

import pytest

from pathways.runtime.service.client import attaching
from pathways.runtime.service.client.attaching import attachment_of


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

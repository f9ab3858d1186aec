"""Sessions for tests, which read programs in the process of the test unless it may start another."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest
from session_client import MESSAGES, Client

from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.loading.local_backend import LocalBackend
from pathways.runtime.proxy.reading.program_reader import ProgramReader
from pathways.runtime.proxy.reading.read_process import ProgramContexts, read_program

_READ_REPLY = ProgramReader._read_reply


@pytest.fixture(autouse=True, scope="module")
def programs_are_read_in_this_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            ProgramReader,
            "_read_reply",
            lambda _, kind, program: read_program(kind, program, ProgramContexts()),
        )
        yield


@pytest.fixture(autouse=True)
def programs_are_read_in_another_process(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if request.node.get_closest_marker("process") is not None:
        monkeypatch.setattr(ProgramReader, "_read_reply", _READ_REPLY)


@pytest.fixture
def client() -> Iterator[Client]:
    """Yields the client of a session, and checks that nothing is left at the end of the session."""
    client = Client(ServedDevices(LocalBackend(jax.devices("cpu")), MESSAGES))
    yield client
    client.session.close()
    assert client.session.counts == (0, 0, 0, 0)

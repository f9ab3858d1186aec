"""Reads programs in the process of the test, unless it is one that may start another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pathways.runtime.proxy.reading.program_reader import ProgramReader
from pathways.runtime.proxy.reading.read_process import ProgramContexts, answer_to

_ANSWER = ProgramReader._answer


@pytest.fixture(autouse=True, scope="module")
def programs_are_read_in_this_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            ProgramReader, "_answer", lambda _, kind, program: answer_to(kind, program, ProgramContexts())
        )
        yield


@pytest.fixture(autouse=True)
def programs_are_read_in_another_process(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if request.node.get_closest_marker("process") is not None:
        monkeypatch.setattr(ProgramReader, "_answer", _ANSWER)

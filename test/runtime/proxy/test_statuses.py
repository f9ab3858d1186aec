"""Statuses of errors: the code of each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from pathways.runtime import proxy
from pathways.runtime.control.records import errors
from pathways.runtime.proxy.wire.statuses import OF_LOST_ISLANDS, StatusCode, StatusError, status_of
from pathways.runtime.resources.manager import ResourceError
from pathways.runtime.xla.host_errors import raise_as_errors_of_jax

ROOM = Path(proxy.__file__).parent


def codes_of_errors(path: Path) -> Iterator[tuple[str, int]]:
    """Yields each code that a module names, and its line."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Attribute(ast.Name("StatusCode"), code) if code in StatusCode.__members__:
                yield code, node.lineno


@pytest.mark.parametrize("path", sorted(ROOM.rglob("*.py")), ids=lambda path: path.stem)
def test_errors_of_the_server_are_not_errors_of_lost_slices(path: Path) -> None:
    if path.name == "statuses.py":
        return
    uses = [(code, line) for code, line in codes_of_errors(path) if StatusCode[code] in OF_LOST_ISLANDS]
    assert uses == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StatusError(StatusCode.ABORTED, "no"), StatusCode.ABORTED),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), StatusCode.RESOURCE_EXHAUSTED),
        (jax.errors.JaxRuntimeError("no code"), StatusCode.UNKNOWN),
        (ResourceError("no"), StatusCode.RESOURCE_EXHAUSTED),
        (MemoryError(), StatusCode.RESOURCE_EXHAUSTED),
        (NotImplementedError("no"), StatusCode.UNIMPLEMENTED),
        (ValueError("no"), StatusCode.INVALID_ARGUMENT),
        (TypeError("no"), StatusCode.INVALID_ARGUMENT),
        (OverflowError("no"), StatusCode.INVALID_ARGUMENT),
        (RuntimeError("Array has been deleted."), StatusCode.INVALID_ARGUMENT),
        (RuntimeError("other"), StatusCode.UNKNOWN),
        (KeyError("a fault of the server"), StatusCode.UNKNOWN),
        (TimeoutError(), StatusCode.UNKNOWN),
        (ConnectionError(), StatusCode.UNKNOWN),
    ],
    ids=repr,
)
def test_codes_of_errors(error: Exception, code: StatusCode) -> None:
    assert status_of(error).code is code


@pytest.mark.parametrize("has_hosts", [False, True])
def test_errors_of_hosts_have_the_code_of_xla(has_hosts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that serves the proxy may have connected to hosts, too."""
    monkeypatch.setattr(errors, "raised_as", {})
    if has_hosts:
        raise_as_errors_of_jax()
    failure = errors.Failure(errors.ProgramFailedError, "step 1 failed: RESOURCE_EXHAUSTED: Out of memory")
    status = status_of(failure.error())
    assert (status.code, status.message) == (StatusCode.RESOURCE_EXHAUSTED, "step 1 failed: Out of memory")

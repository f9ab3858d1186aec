"""Replies to requests of programs that import Pathways, see `server_requests`: about status and traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from pathways.runtime.local.server_requests import STATUS, TRACE, TraceRequest
from pathways.runtime.proxy.sessions.state import SessionState
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError


def _status(state: SessionState, body: Any) -> str:
    if body != {}:
        raise StatusError(StatusCode.INVALID_ARGUMENT, f"invalid {STATUS}: it has no fields")
    return _encoded(state.served.backend.status())


def _trace(state: SessionState, body: Any) -> str:
    try:
        request = msgspec.convert(body, TraceRequest)
    except msgspec.ValidationError as error:
        raise StatusError(StatusCode.INVALID_ARGUMENT, f"invalid {TRACE}: {error}"[:300]) from None
    if request.action == "start":
        state.trace.start(lambda: tuple(state.programs.values()))
    elif request.action == "stop":
        state.trace.stop()
    return _encoded(state.trace.read())


def _encoded(reply: Any) -> str:
    return msgspec.json.encode(reply).decode()


REPLIES: Mapping[str, Callable[[SessionState, Any], str]] = {STATUS: _status, TRACE: _trace}
"""Functions that return the reply to the content of a request, by its kind."""

"""Replies to requests of clients that import Pathways: about status, programs and traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from pathways.runtime.local.server_requests import (
    DEVICES,
    PROGRAM,
    STATUS,
    TRACE,
    ProgramReply,
    ProgramRequest,
    TraceRequest,
)
from pathways.runtime.proxy.loading.mpmd_program import MpmdProgram
from pathways.runtime.proxy.sessions.state import SessionState
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError


def _status(state: SessionState, body: Any) -> str:
    _check_empty(STATUS, body)
    return _encoded(state.served.backend.status())


def _devices(state: SessionState, body: Any) -> str:
    _check_empty(DEVICES, body)
    served = state.served
    return _encoded(served.backend.served_devices(served.island_states.lost))


def _program(state: SessionState, body: Any) -> str:
    request = _decoded(PROGRAM, body, ProgramRequest)
    for program in tuple(state.programs.values()):
        if isinstance(program, MpmdProgram) and program.digest == request.program:
            flops = {name: costs.get("flops", 0.0) for name, costs in program.costs.items()}
            text = program.device_text() if request.text else ""
            return _encoded(ProgramReply(dict(program.slice_memory), flops, text))
    raise StatusError(StatusCode.INVALID_ARGUMENT, f"{PROGRAM}: the session has no such program")


def _trace(state: SessionState, body: Any) -> str:
    request = _decoded(TRACE, body, TraceRequest)
    if request.action == "start":
        state.trace.start(lambda: tuple(state.programs.values()))
    elif request.action == "stop":
        state.trace.stop()
    return _encoded(state.trace.read())


def _check_empty(kind: str, body: Any) -> None:
    if body != {}:
        raise StatusError(StatusCode.INVALID_ARGUMENT, f"invalid {kind}: it has no fields")


def _decoded[T](kind: str, body: Any, type_: type[T]) -> T:
    try:
        return msgspec.convert(body, type_)
    except msgspec.ValidationError as error:
        raise StatusError(StatusCode.INVALID_ARGUMENT, f"invalid {kind}: {error}"[:300]) from None


def _encoded(reply: Any) -> str:
    return msgspec.json.encode(reply).decode()


REPLIES: Mapping[str, Callable[[SessionState, Any], str]] = {
    STATUS: _status,
    DEVICES: _devices,
    PROGRAM: _program,
    TRACE: _trace,
}
"""Functions that return the reply to the content of a request, by its kind."""

"""Messages between a service and the process that cuts programs for it, as MessagePack."""

from __future__ import annotations

import msgspec

from pathways.runtime.hosts.protocol.programs import BoundProgram, SplitProgram


class SplitRequest(msgspec.Struct, frozen=True):
    """A program, and how many steps of it may be under way; see `splitting.split`."""

    program: BoundProgram
    ahead: int | str
    together: bool


class SplitReply(msgspec.Struct, frozen=True):
    """The parts, or what is wrong."""

    parts: SplitProgram | None
    error: str | None = None

"""Messages between a service and the process that splits programs for it, as MessagePack."""

from __future__ import annotations

import msgspec

from pathways.runtime.hosts.protocol.programs import BoundProgram, SplitProgram


class SplitRequest(msgspec.Struct, frozen=True):
    """Program to split, and the arguments of `splitting.split`."""

    program: BoundProgram
    ahead: int | str
    multi_host: bool


class SplitReply(msgspec.Struct, frozen=True):
    """Split program, or the error."""

    program: SplitProgram | None
    error: str | None = None

"""Requests of a client of `pw-proxy` to its server about programs of Pathways, and the replies.

The protocol has no message for them. A request travels as JSON instead of a program, like the
requests of `pathwaysutils`, and the text of the compiled program is the reply, in JSON, too.
"""

from __future__ import annotations

import time
from typing import Any, Literal

import msgspec

from pathways.runtime.local.memory import SliceMemory
from pathways.runtime.xla import ifrt

STATUS = "pathwaysStatusRequest"
"""Kind of a request without fields; the reply is a `Status`."""

DEVICES = "pathwaysDevicesRequest"
"""Kind of a request without fields; the reply is a tuple with a `ServedDevice` for each device."""

TRACE = "pathwaysTraceRequest"
"""Kind of a `TraceRequest`; the reply is a `TraceReply`."""

PROGRAM = "pathwaysProgramRequest"
"""Kind of a `ProgramRequest`; the reply is a `ProgramReply`."""


class ServedDevice(msgspec.Struct, frozen=True, array_like=True):
    """Present facts about a device of a server.

    Attributes:
      host: the number of its host.
      memory: the bytes of memory that programs may use, None if unknown.
      state: see `DeviceIsland`, like `round_trip`, which the server has measured.
    """

    id: int
    host: int
    memory: int | None
    state: str
    round_trip: float | None = None


class ProgramRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request about a program that this client has loaded.

    Attributes:
      program: the digest of its bundle.
      text: whether the reply has its text.
    """

    program: str
    text: bool = False


class ProgramReply(msgspec.Struct, frozen=True):
    """Facts about a program that the server has compiled.

    Attributes:
      memory: the memory of a call on each slice.
      flops: the floating-point operations of a launch of each computation, on all its devices, by XLA's
        estimate.
      text: XLA's optimized module of each computation on each slice; empty if it was not requested.
    """

    memory: dict[str, SliceMemory]
    flops: dict[str, float]
    text: str


class TraceRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request about the trace of the calls of this client.

    Attributes:
      action: `start` starts to record, `stop` waits for the calls so far and ends, `read` does neither.
    """

    action: Literal["start", "read", "stop"]


class ProxiedStep(msgspec.Struct, frozen=True, array_like=True):
    """Times of a step of a call; nanoseconds of the server's clock. See `ObservedTimes` of traces.

    Attributes:
      number: its number in the plan. With hosts, in the plan that has a slice for each host.
      ran: the start and end of a launch by a profile; None without one.
    """

    number: int
    dispatched: int
    done: int | None
    before: int
    ran: tuple[int, int] | None


class ProxiedCall(msgspec.Struct, frozen=True):
    """Times of a call.

    Attributes:
      program: the digest of its bundle.
    """

    program: str
    steps: tuple[ProxiedStep, ...]


class TraceReply(msgspec.Struct, frozen=True):
    """Calls that the client has not read, as many as a reply has room for.

    Attributes:
      time: the time of the server's clock, which is later than all times of these calls.
      calls: finished calls, in the order in which they were recorded; each a `ProxiedCall`.
      dropped: the number of calls since the last reply that the server had no memory for.
      more: whether there are further ones.
    """

    time: int
    calls: tuple[msgspec.Raw, ...] = ()
    dropped: int = 0
    more: bool = False


class TimedReply[T](msgspec.Struct, frozen=True):
    """Reply, and when its request was sent and processed, in nanoseconds of this process's clock."""

    body: T
    sent: int
    received: int


def send_request[T](client: Any, kind: str, body: Any, type_: type[T]) -> TimedReply[T]:
    """Sends a request to the server that the devices of a client belong to, and returns the reply.

    Args:
      client: the IFRT client of these devices.

    Raises:
      JaxRuntimeError: the server rejects it, or is lost.
      DecodeError: the server is of another version.
    """
    sent = time.monotonic_ns()
    compiled = ifrt.compile_request(client, msgspec.json.encode({kind: body}).decode())
    received = time.monotonic_ns()
    return TimedReply(msgspec.json.decode(compiled.get_hlo_text(), type=type_), sent, received)

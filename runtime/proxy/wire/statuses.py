"""Statuses of the protocol: canonical codes, errors with such a code, and the codes of XLA's errors."""

from __future__ import annotations

import enum
import re

import jax

from pathways.dialect.errors import PathwaysError
from pathways.runtime.control.records.errors import (
    ClusterClosedError,
    HostError,
    HostLeavingError,
    HostLostError,
    ServiceLostError,
)
from pathways.runtime.resources.manager import ResourceError


class StatusCode(enum.IntEnum):
    """Canonical status codes, with the numbers that gRPC and XLA share."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


OF_LOST_ISLANDS = frozenset(
    {
        StatusCode.DATA_LOSS,
        StatusCode.DEADLINE_EXCEEDED,
        StatusCode.INTERNAL,
        StatusCode.NOT_FOUND,
        StatusCode.UNAVAILABLE,
    }
)
"""Codes after which libraries for elastic training retry, since they take them for a lost island or server.

Errors of the server itself have none of them; a lost island has DATA_LOSS.
"""


class StatusError(PathwaysError):
    """Status other than OK: the reply to a request, or the state of an array without a value."""

    def __init__(self, code: StatusCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


_PREFIX = re.compile(r"\s*([A-Z_]+): (.*)", re.DOTALL)


def status_of(error: BaseException) -> StatusError:
    """Returns the status of an error: its own, XLA's, or one by the class of the error.

    It is a new error, without a traceback: the traceback of an error in place of an array would keep the
    arguments of the failed functions alive, and with them other arrays.
    """
    match error:
        case StatusError():
            return StatusError(error.code, error.message)
        case ServiceLostError() | HostLeavingError() | ClusterClosedError():
            return StatusError(StatusCode.UNAVAILABLE, str(error))
        case HostLostError():
            return StatusError(StatusCode.DATA_LOSS, str(error))
        case ResourceError():
            return StatusError(StatusCode.RESOURCE_EXHAUSTED, str(error))
        case HostError():
            # The record: in a process that has hosts, the text of the error starts with a code of its class.
            return _status_of_host(error.record().text)
        case jax.errors.JaxRuntimeError():
            return _status_of_xla(str(error))
        case PermissionError() if error.errno is None:
            return StatusError(StatusCode.PERMISSION_DENIED, str(error))
        case MemoryError():
            return StatusError(StatusCode.RESOURCE_EXHAUSTED, "out of memory")
        case NotImplementedError():
            return StatusError(StatusCode.UNIMPLEMENTED, str(error))
        case ValueError() | TypeError() | OverflowError():
            return StatusError(StatusCode.INVALID_ARGUMENT, str(error))
        case RuntimeError() if "deleted" in str(error):
            return StatusError(StatusCode.INVALID_ARGUMENT, str(error))
    # Not INTERNAL, which is one of OF_LOST_ISLANDS.
    return StatusError(StatusCode.UNKNOWN, f"{type(error).__name__} in the server: {error}")


def _status_of_xla(text: str) -> StatusError:
    match = _PREFIX.match(text)
    if match is None or match[1] not in StatusCode.__members__:
        return StatusError(StatusCode.UNKNOWN, text)
    return StatusError(StatusCode[match[1]], match[2])


_CODE = re.compile(r"\b([A-Z]+(?:_[A-Z]+)*): ")


def _status_of_host(text: str) -> StatusError:
    """Returns the status of an error of a program on a host, whose text may contain an error of XLA."""
    codes = (candidate for candidate in _CODE.finditer(text) if candidate[1] in StatusCode.__members__)
    match = next(codes, None)
    if match is None:
        return StatusError(StatusCode.UNKNOWN, text)
    return StatusError(StatusCode[match[1]], text[: match.start()] + text[match.end() :])


def island_lost(text: str) -> StatusError:
    """Returns the error in place of arrays that were on lost islands."""
    return StatusError(StatusCode.DATA_LOSS, text)


def island_out(text: str) -> StatusError:
    """Returns the error in place of arrays on lost islands that return only if an operator requests it."""
    return StatusError(StatusCode.UNAVAILABLE, text)

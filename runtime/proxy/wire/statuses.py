"""Statuses of the protocol: canonical codes, errors that carry them, and the codes of errors of XLA."""

from __future__ import annotations

import enum
import re

import jax

from pathways.dialect.errors import PathwaysError
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


OF_LOST_SLICES = frozenset(
    {
        StatusCode.DATA_LOSS,
        StatusCode.DEADLINE_EXCEEDED,
        StatusCode.INTERNAL,
        StatusCode.NOT_FOUND,
        StatusCode.UNAVAILABLE,
    }
)
"""Codes that libraries for elastic training take for a lost slice, or a lost server, and try again.

The server's own faults have none of them, and a lost slice has DATA_LOSS.
"""


class StatusError(PathwaysError):
    """A status other than OK: the reply to a request, or the state of an array that has no value."""

    def __init__(self, code: StatusCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


_PREFIX = re.compile(r"\s*([A-Z_]+): (.*)", re.DOTALL)


def status_of(error: BaseException) -> StatusError:
    """Returns the status that an error stands for: its own, XLA's, or one by the class of the error.

    It is a new error, without a traceback: that of an error in place of an array would hold the arguments of
    the functions that failed, and with them other arrays.
    """
    match error:
        case StatusError():
            return StatusError(error.code, error.message)
        case jax.errors.JaxRuntimeError():
            return _status_of_xla(str(error))
        case PermissionError() if error.errno is None:
            return StatusError(StatusCode.PERMISSION_DENIED, str(error))
        case ResourceError():
            return StatusError(StatusCode.RESOURCE_EXHAUSTED, str(error))
        case MemoryError():
            return StatusError(StatusCode.RESOURCE_EXHAUSTED, "out of memory")
        case NotImplementedError():
            return StatusError(StatusCode.UNIMPLEMENTED, str(error))
        case ValueError() | TypeError() | OverflowError():
            return StatusError(StatusCode.INVALID_ARGUMENT, str(error))
        case RuntimeError() if "deleted" in str(error):
            return StatusError(StatusCode.INVALID_ARGUMENT, str(error))
    # Not INTERNAL, which is one of OF_LOST_SLICES.
    return StatusError(StatusCode.UNKNOWN, f"{type(error).__name__} in the server: {error}")


def _status_of_xla(text: str) -> StatusError:
    match = _PREFIX.match(text)
    if match is None or match[1] not in StatusCode.__members__:
        return StatusError(StatusCode.UNKNOWN, text)
    return StatusError(StatusCode[match[1]], match[2])


def slice_lost(slices: frozenset[int]) -> StatusError:
    """Returns the error in place of arrays that were on lost slices, or would have been made there."""
    names = ", ".join(str(index) for index in sorted(slices))
    return StatusError(
        StatusCode.DATA_LOSS, f"slice {names} was lost" if len(slices) == 1 else f"slices {names} were lost"
    )

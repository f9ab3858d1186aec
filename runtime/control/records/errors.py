"""Errors of hosts as users see them, and the record in which cores keep them."""

from __future__ import annotations

import dataclasses

from pathways.dialect.errors import PathwaysError


class HostError(PathwaysError, RuntimeError):
    """Failure of hosts to serve a request; names the host. Derived classes give the cause."""

    __module__ = "pathways"

    def record(self) -> Failure:
        """Returns the failure that cores keep of it, without the context that is added where it is raised."""
        return Failure(type(self), str(self))


class HostStartError(HostError):
    """Failure of a worker to start, or missing place for it."""

    __module__ = "pathways"


class HostLostError(HostError):
    """Loss of a host, and with it of all arrays of its island."""

    __module__ = "pathways"


class ServiceLostError(HostLostError):
    """Loss of the service that this process is attached to, and with it of all hosts."""

    __module__ = "pathways"


class HostLeavingError(HostError):
    """Refusal of an island that leaves: it finishes its steps, and accepts nothing more."""

    __module__ = "pathways"


class ClusterClosedError(HostError):
    """Use of hosts that this process has closed, or never had since it was forked."""

    __module__ = "pathways"


class ProgramFailedError(HostError):
    """Failure of a program on a host, which continues; names the program."""

    __module__ = "pathways"


class CallFailedError(HostError):
    """Exception of a function that was called on a host; has its type, message and traceback."""

    __module__ = "pathways"


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """Reason why something is not available.

    Attributes:
      kind: the error to raise for it.
      text: its message.
    """

    kind: type[HostError]
    text: str

    def error(self, about: str = "") -> HostError:
        """Returns the error; its message begins with `about`, if given."""
        return raised_as.get(self.kind, self.kind)(f"{about}: {self.text}" if about else self.text)


raised_as: dict[type[HostError], type[HostError]] = {}
"""Classes to raise in place of others. Cores do not know JAX; classes that are errors of JAX, too, are added
where it is imported."""


def lost(text: str) -> Failure:
    """Returns the failure that a host is lost."""
    return Failure(HostLostError, text)


def failed(text: str) -> Failure:
    """Returns the failure that a program failed."""
    return Failure(ProgramFailedError, text)

"""What goes wrong with hosts: the errors that users see, and the record in which cores keep them."""

from __future__ import annotations

import dataclasses

from pathways.dialect.errors import PathwaysError


class HostError(PathwaysError, RuntimeError):
    """Hosts did not do what they were asked; names the host. The classes derived from it say why."""

    __module__ = "pathways"

    def record(self) -> Failure:
        """Returns the failure that cores keep of it, without what is added where it is raised."""
        return Failure(type(self), str(self))


class HostStartError(HostError):
    """A worker does not start, or there is no place for it."""

    __module__ = "pathways"


class HostLostError(HostError):
    """A host is gone, and with it all that its island had."""

    __module__ = "pathways"


class HostLeavingError(HostError):
    """An island was asked to end: it finishes what it has, and takes nothing more."""

    __module__ = "pathways"


class ClusterClosedError(HostError):
    """This process has let go of its hosts, or never had them since it was forked."""

    __module__ = "pathways"


class ProgramFailedError(HostError):
    """A program failed on a host, which lives on; names the program."""

    __module__ = "pathways"


class CallFailedError(HostError):
    """A function that was called on a host raised; has its type, message and traceback."""

    __module__ = "pathways"


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """Why something is not there.

    Attributes:
      kind: the error that it is to whoever asks for it.
      text: its message.
    """

    kind: type[HostError]
    text: str

    def error(self, about: str = "") -> HostError:
        """The error, with what it is about in front."""
        return raised_as.get(self.kind, self.kind)(f"{about}: {self.text}" if about else self.text)


raised_as: dict[type[HostError], type[HostError]] = {}
"""Classes to raise in the place of others. Cores know nothing of JAX; classes that are errors of JAX, too,
are added where it is imported."""


def lost(text: str) -> Failure:
    """That a host is gone."""
    return Failure(HostLostError, text)


def failed(text: str) -> Failure:
    """That a program failed."""
    return Failure(ProgramFailedError, text)

"""Errors of hosts that are errors of JAX, too: what handles those handles a lost host."""

from __future__ import annotations

from typing import Any

import jax

from pathways.runtime.control.records import errors
from pathways.runtime.control.records.errors import (
    Failure,
    HostError,
    HostLeavingError,
    HostLostError,
    ProgramFailedError,
)

_STATUSES: dict[type[HostError], str] = {
    HostLostError: "DATA_LOSS",
    HostLeavingError: "UNAVAILABLE",
    ProgramFailedError: "INTERNAL",
}
"""Statuses of XLA that texts begin with, which libraries for elastic training read."""


def raise_as_errors_of_jax() -> None:
    """Has such errors raised as classes that are derived from `jax.errors.JaxRuntimeError`, from now on."""
    if not errors.raised_as:
        errors.raised_as.update({kind: _also_of_jax(kind, status) for kind, status in _STATUSES.items()})


def _also_of_jax(kind: type[HostError], status: str) -> type[HostError]:
    class Raised(kind, jax.errors.JaxRuntimeError):  # type: ignore[misc, valid-type]
        __module__ = kind.__module__
        __doc__ = kind.__doc__

        def __init__(self, text: str) -> None:
            super().__init__(f"{status}: {text}")
            self._text = text

        def record(self) -> Failure:
            return Failure(kind, self._text)

        def __reduce__(self) -> Any:
            # Under its name, pickle finds the class that it is derived from.
            return self.record().error, ()

    Raised.__name__ = Raised.__qualname__ = kind.__name__
    return Raised

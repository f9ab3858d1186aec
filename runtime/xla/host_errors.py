"""Errors of hosts that are also errors of JAX, so that handlers of JAX's errors handle a lost host."""

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
    ServiceLostError,
)

_STATUSES: dict[type[HostError], str] = {
    HostLostError: "DATA_LOSS",
    ServiceLostError: "UNAVAILABLE",
    HostLeavingError: "UNAVAILABLE",
    ProgramFailedError: "INTERNAL",
}
"""XLA's status for each class. Texts start with it, since libraries for elastic training look for it."""


def raise_as_errors_of_jax() -> None:
    """Makes all errors of hosts subclasses of `jax.errors.JaxRuntimeError` from now on."""
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
            # Pickle would find the base class under the name of this class.
            return self.record().error, ()

    Raised.__name__ = Raised.__qualname__ = kind.__name__
    return Raised

"""Stored computations and constants: a module declares them, a bundle or a message holds them beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import ml_dtypes  # noqa: F401 (teaches numpy the names of small floats)
import msgspec
import numpy as np


class StoredComputation(msgspec.Struct, frozen=True):
    """Computation that a module only declares; see `Computation`."""

    module: bytes
    local: bool
    effects: bool


class StoredConstant(msgspec.Struct, frozen=True):
    """Constant that a module only declares: its bytes, in C order."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclasses.dataclass(frozen=True)
class Stored:
    """Contents outside of a module, by name: computations, and the arrays of constants."""

    computations: Mapping[str, StoredComputation]
    constants: Mapping[str, object]

    @classmethod
    def of(
        cls, computations: Mapping[str, StoredComputation], constants: Mapping[str, StoredConstant]
    ) -> Stored | None:
        """Returns the contents that were sent with a module; None for a module that holds all itself."""
        if not (computations or constants):
            return None
        arrays = {
            name: np.frombuffer(c.data, np.dtype(c.dtype)).reshape(c.shape) for name, c in constants.items()
        }
        return cls(computations, arrays)

    def plain_constants(self) -> dict[str, StoredConstant]:
        """Returns the constants in the form in which they are sent."""
        arrays = {name: np.asarray(value) for name, value in self.constants.items()}
        return {name: StoredConstant(a.dtype.name, a.shape, a.tobytes()) for name, a in arrays.items()}

"""A block of an array in a snapshot."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, eq=False)
class StateBlock:
    """A block of an array of the state.

    Attributes:
      name: its name, which no other block of the state has.
      index: the rows that it is in each dimension of the array, from the first to the one after the last.
      data: its elements, an array of NumPy; or one of JAX that is to be written, and may not be computed yet.
    """

    name: str
    index: tuple[tuple[int, int], ...]
    data: Any

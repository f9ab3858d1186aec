"""Record of a block of an array in a snapshot."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, eq=False)
class StateBlock:
    """Block of an array of the state.

    Attributes:
      name: its name, unique in the state.
      index: its rows in each dimension of the array, from the first to the one after the last.
      data: its elements, a NumPy array; for a block to write also a JAX array, which may be pending.
    """

    name: str
    index: tuple[tuple[int, int], ...]
    data: Any

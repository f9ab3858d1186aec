"""Calls of functions on hosts, as messages."""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import jax

from pathways.runtime.hosts.protocol.messages import Call, KeptArray, ResultArray

lanes = itertools.count(1)
"""Lane numbers: calls of one lane run one after the other."""


def call_of(
    function: str,
    edition: int,
    lane: int,
    arrays: Sequence[KeptArray],
    arguments: bytes,
    outputs: tuple[ResultArray, ...] | None,
    structure: bytes = b"null",
) -> Call:
    """Returns a call as hosts receive it, except for the fields that `HostSession.call` sets.

    Args:
      function: its import path.
      edition: see `Call`.
      lane: calls of one lane run one after the other.
      arrays: the array arguments.
      arguments: see `Call`.
      outputs: the arrays that it creates.
    """
    # Only relative folders need it, and `Path.cwd` raises where the folder was deleted.
    here = Path() if all(map(os.path.isabs, sys.path)) else Path.cwd()
    path = _absolute(tuple(sys.path), here)
    x64 = bool(jax.config.jax_enable_x64)
    return Call(0, 0, (), function, path, edition, lane, x64, tuple(arrays), arguments, outputs, structure)


@functools.lru_cache(maxsize=8)
def _absolute(folders: tuple[str, ...], here: Path) -> tuple[str, ...]:
    """Returns the folders of a search path, for processes that work in another one."""
    return tuple(str(Path(here, folder)) for folder in folders)

"""What callers of a program and the runtime see of it, however it was made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jax.sharding import PartitionSpec

from pathways.compiler.frontend.trees import KeyPath
from pathways.runtime.resources.virtual import VirtualSlice


@dataclasses.dataclass(frozen=True)
class ArgumentHome:
    """The slice that an argument lives on.

    Attributes:
      slice: the slice.
      spec: how the argument lies over it; None where that is not known.
    """

    slice: VirtualSlice
    spec: PartitionSpec | None


@dataclasses.dataclass(frozen=True)
class Interface:
    """What a program takes, returns and runs on.

    Attributes:
      slices: the slices by their names in the module, in the order of their making.
      argument_paths: what to call each flat argument in messages.
      in_avals: JAX's abstract values of the flat arguments.
      out_avals: those of the flat results.
      out_tree: the structure of the results.
      out_keys: where each flat result is in it.
      platform: what JAX calls the platform that it is for, such as `cuda`.
      homes: where each flat argument lives, of a program that runs there; empty where placed functions say
        where it runs.
    """

    slices: Mapping[str, VirtualSlice]
    argument_paths: tuple[str, ...]
    in_avals: tuple[Any, ...]
    out_avals: tuple[Any, ...]
    out_tree: Any
    out_keys: tuple[KeyPath, ...]
    platform: str
    homes: tuple[ArgumentHome | None, ...] = ()

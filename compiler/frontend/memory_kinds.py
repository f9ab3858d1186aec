"""Memory kinds of arguments, and of values in a traced program, by JAX's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from pathways.compiler.frontend import jax_internals


def kind_of(leaf: Any) -> str | None:
    """Returns the memory kind of an array or of its type; None for the default memory of devices."""
    sharding = getattr(leaf, "sharding", None)
    kind = getattr(sharding, "memory_kind", None)
    if kind is None:
        return jax_internals.kind_of_space(getattr(leaf, "aval", leaf))
    if kind == jax_internals.DEVICE_MEMORY or _is_default(kind, sharding):
        return None
    return kind


def _is_default(kind: str, sharding: Any) -> bool:
    """Returns whether a memory kind is the default one of the devices of a sharding."""
    if isinstance(getattr(sharding, "mesh", None), jax.sharding.AbstractMesh):
        return False
    return kind == next(iter(sharding.device_set)).default_memory().kind


def in_memory(kind: str | None) -> str:
    """Returns a memory kind for messages, after the type of an array; empty for the default one."""
    return "" if kind is None else f" in {kind} memory"


def refuse_arguments(program: str, paths: Sequence[str], kinds: Sequence[str | None]) -> None:
    """Checks that arguments are in the default memory of devices.

    Raises:
      ValueError: one is not; names it.
    """
    for path, kind in zip(paths, kinds, strict=True):
        if kind is not None:
            raise ValueError(
                f"program '{program}': argument {path} is in {kind} memory, but programs keep arrays in the "
                "default memory of devices: pass jax.device_put(x, jax.memory.Space.Device)"
            )


def refuse_values(program: str, jaxpr: Any) -> None:
    """Checks that a traced program puts no value into other memory than the default one of devices.

    Raises:
      ValueError: it does; names the memory and the line.
    """
    for kind, line in jax_internals.values_in_memory(jaxpr):
        raise ValueError(
            f"program '{program}': the value computed at {line} is put into {kind} memory, but programs keep "
            "values in the default memory of devices: remove jax.device_put to other memory, and policies "
            "of jax.checkpoint that offload"
        )

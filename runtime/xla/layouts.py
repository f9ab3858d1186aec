"""Layouts of arrays in memory; None stands for the default, row by row.

XLA believes what it is told: a program that gets an array in another layout than the one it was compiled for
computes something else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental.layout import Format, Layout

from pathways.runtime.xla import pjrt

_TEXT = re.compile(r"\{([\d,]*)(?::((?:T(?:\([\d,]+\))+)?)(?:E\(\d+\))?)?\}")
_MAX_TILES = 4
_MAX_TILE_SIZE = 1 << 20


def layout_of(value: Any) -> Layout | None:
    """Returns the layout of an array, or of an operand or result as an executable names it."""
    # No public class has it without a sharding.
    xla = getattr(value, "_pjrt_layout", value)._xla_layout()
    return make_layout(xla.minor_to_major(), xla.tiling(), len(xla.minor_to_major()))


def make_layout(minor_to_major: Sequence[int], tiles: Sequence[Sequence[int]], rank: int) -> Layout | None:
    """Returns a layout of an array of `rank` dimensions.

    Raises:
      ValueError: it is none.
    """
    major_to_minor = tuple(minor_to_major)[::-1]
    tiling = tuple(map(tuple, tiles))
    if (
        sorted(major_to_minor) != list(range(rank))
        or len(tiling) > _MAX_TILES
        or any(not 1 <= size <= _MAX_TILE_SIZE for tile in tiling for size in tile)
    ):
        raise ValueError(f"no layout of {rank} dimensions: {major_to_minor[:64]} with tiles {tiling[:9]}")
    # The default of all platforms that are served.
    if not tiling and major_to_minor == tuple(range(rank)):
        return None
    return Layout(major_to_minor, tiling)


def parse_layout(data: bytes, rank: int) -> Layout | None:
    """Returns the layout of an array of `rank` dimensions that a text of XLA has; no text is the default.

    Raises:
      ValueError: it is none.
      NotImplementedError: it has more than an order of dimensions and tiles.
    """
    if not data:
        return None
    found = _TEXT.fullmatch(data.decode(errors="replace"))
    if found is None:
        raise NotImplementedError(f"the layout {data[:100]!r} is not supported by the server")
    tiles = [_numbers(tile) for tile in re.findall(r"\(([\d,]+)\)", found[2] or "")]
    return make_layout(_numbers(found[1]), tiles, rank)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def put_in_layout(value: jax.Array, sharding: jax.sharding.Sharding, layout: Layout | None) -> jax.Array:
    """Returns an array in a layout: itself, if it has it, or a copy."""
    if layout_of(value) == layout:
        return value
    return pjrt.device_put(value, Format(layout or Layout(tuple(range(value.ndim))), sharding))

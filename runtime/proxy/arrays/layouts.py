"""Layouts of arrays in memory; None represents the default, row by row.

XLA does not check layouts: a program that gets an array in another layout than it was compiled for computes
wrong values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.layout import Format, Layout

from pathways.runtime.xla import pjrt

# As in `{1,0:T(8,128)(2,1)E(16)}`: dimensions from minor to major, tiles, and bits of an element.
_TEXT = re.compile(r"\{([\d,]*)(?::((?:T(?:\([\d,]+\))+)?)(?:E\(\d+\))?)?\}")
_SUB_BYTE = re.compile(r"u?int([124])$|float(4)_")
"""Pattern of the names of types whose elements share bytes."""
_MAX_TILES = 4
_MAX_TILE_SIZE = 1 << 20


def layout_of(value: Any) -> Layout | None:
    """Returns the layout of an array, or of an operand or result of an executable."""
    # No public class has a layout without a sharding.
    xla = getattr(value, "_pjrt_layout", value)._xla_layout()
    return make_layout(xla.minor_to_major(), xla.tiling(), len(xla.minor_to_major()))


def make_layout(minor_to_major: Sequence[int], tiles: Sequence[Sequence[int]], rank: int) -> Layout | None:
    """Returns a layout of an array of `rank` dimensions.

    Raises:
      ValueError: the values describe no layout.
    """
    major_to_minor = tuple(minor_to_major)[::-1]
    tiling = tuple(map(tuple, tiles))
    if (
        sorted(major_to_minor) != list(range(rank))
        or len(tiling) > _MAX_TILES
        or any(not 1 <= size <= _MAX_TILE_SIZE for tile in tiling for size in tile)
    ):
        raise ValueError(f"no layout of {rank} dimensions: {major_to_minor[:64]} with tiles {tiling[:9]}")
    # The default layout of all platforms that the server supports.
    if not tiling and major_to_minor == tuple(range(rank)):
        return None
    return Layout(major_to_minor, tiling)


def parse_layout(data: bytes, rank: int) -> Layout | None:
    """Parses XLA's text of a layout of an array of `rank` dimensions; empty text is the default layout.

    Raises:
      ValueError: the text describes no layout of such an array.
      NotImplementedError: it has more than an order of dimensions and tiles.
    """
    if not data:
        return None
    match = _TEXT.fullmatch(data.decode(errors="replace"))
    if match is None:
        raise NotImplementedError(f"the layout {data[:100]!r} is not supported by the server")
    tiles = [_numbers(tile) for tile in re.findall(r"\(([\d,]+)\)", match[2] or "")]
    return make_layout(_numbers(match[1]), tiles, rank)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def default_layout(dtype: np.dtype[Any], rank: int) -> str:
    """Returns XLA's text of the default layout of arrays."""
    minor_to_major = ",".join(map(str, reversed(range(rank))))
    bits = _SUB_BYTE.match(dtype.name)
    return f"{{{minor_to_major}}}" if bits is None else f"{{{minor_to_major}:E({bits[1] or bits[2]})}}"


def put_in_layout(value: jax.Array, sharding: jax.sharding.Sharding, layout: Layout | None) -> jax.Array:
    """Returns an array in a layout: the same array if it has that layout, else a copy."""
    if layout_of(value) == layout:
        return value
    return pjrt.device_put(value, Format(layout or Layout(tuple(range(value.ndim))), sharding))

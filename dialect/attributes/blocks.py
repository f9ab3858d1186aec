"""Equal blocks of one dimension of an array, one for each replica or microbatch: plain data."""

from __future__ import annotations

from collections.abc import Sequence


def block_shape(shape: Sequence[int], dim: int | None, count: int) -> tuple[int, ...]:
    """Returns the shape of each of `count` equal blocks along a dimension; `shape` itself if that is None."""
    return tuple(size // count if n == dim else size for n, size in enumerate(shape))


def whole_shape(block: Sequence[int], dim: int | None, count: int) -> tuple[int, ...]:
    """Returns the shape of an array from that of its blocks: the inverse of `block_shape`."""
    return tuple(size * count if n == dim else size for n, size in enumerate(block))


def block_bounds(size: int, number: int, count: int) -> tuple[int, int]:
    """Returns the first and last-plus-one element of a block along a dimension of `size` elements."""
    return number * (size // count), (number + 1) * (size // count)

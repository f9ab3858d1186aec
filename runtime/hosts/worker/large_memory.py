"""Memory for copies of large arrays."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

_LARGE = 4 << 20
"""Bytes from which on pages are asked for in large ones."""

_HUGE = 2 << 20
"""The size of a large page, which has to begin at a multiple of it."""

_ALIGNMENT = 64
"""Bytes at multiples of which XLA wants arrays to begin (`xla::cpu::MinAlign`)."""


def memory_of(size: int) -> np.ndarray[Any, Any]:
    """Bytes that begin where XLA wants arrays to.

    The system gives new memory page by page, as it is written: of small pages that takes up to thirty times
    as long as the copy.
    """
    if size < _LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        block = np.empty(size + _ALIGNMENT, np.uint8)
        return block[-block.ctypes.data % _ALIGNMENT :][:size]
    mapped = mmap.mmap(-1, size + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapped.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(mapped, np.uint8)
    return whole[-whole.ctypes.data % _HUGE :][:size]

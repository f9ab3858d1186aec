"""Memory for copies of large arrays."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

_LARGE = 4 << 20
"""Size in bytes from which on large pages are requested."""

_HUGE = 2 << 20
"""Size and alignment of a large page, in bytes."""

_ALIGNMENT = 64
"""Alignment in bytes that XLA wants for arrays (`xla::cpu::MinAlign`)."""


def memory_of(size: int) -> np.ndarray[Any, Any]:
    """Returns uninitialized bytes that are aligned for XLA.

    The system allocates new memory page by page, on the first write: with small pages that takes up to thirty
    times as long as the copy itself.
    """
    if size < _LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        block = np.empty(size + _ALIGNMENT, np.uint8)
        return block[-block.ctypes.data % _ALIGNMENT :][:size]
    mapped = mmap.mmap(-1, size + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapped.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(mapped, np.uint8)
    return memory[-memory.ctypes.data % _HUGE :][:size]

"""Host buffers as arrays of NumPy, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pathways.runtime.proxy.arrays.placements import ArraySpec
from pathways.runtime.proxy.wire.events import Buffer
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError


def view_host_buffer(data: Buffer, spec: ArraySpec, byte_strides: Sequence[int] | None) -> np.ndarray:
    """Returns a host buffer as an array of NumPy, without a copy.

    Raises:
      StatusError: the buffer has another size, or the strides are not positive.
    """
    size = host_size(spec.shape, spec.dtype, byte_strides)
    if len(data) != size:
        raise StatusError(
            StatusCode.INVALID_ARGUMENT,
            f"a host buffer has {len(data)} bytes; {spec.dtype.name}{list(spec.shape)} needs {size}",
        )
    if size == 0 or byte_strides is None:
        return np.frombuffer(data, spec.dtype).reshape(spec.shape)
    return np.ndarray(spec.shape, spec.dtype, buffer=data, strides=tuple(byte_strides))


def host_size(shape: Sequence[int], dtype: np.dtype[Any], byte_strides: Sequence[int] | None) -> int:
    """Returns the number of bytes that an array spans in host memory.

    Raises:
      StatusError: the protocol does not allow the strides.
    """
    if byte_strides is None or not shape:
        return math.prod(shape) * dtype.itemsize
    if len(byte_strides) != len(shape):
        raise StatusError(
            StatusCode.INVALID_ARGUMENT, f"{len(byte_strides)} strides of {len(shape)} dimensions"
        )
    if 0 in shape:
        return 0
    used = [(size, stride) for size, stride in zip(shape, byte_strides, strict=True) if size > 1]
    if any(stride <= 0 or stride % dtype.itemsize for _, stride in used):
        raise StatusError(
            StatusCode.INVALID_ARGUMENT, f"invalid strides {list(byte_strides)} of {dtype.name}"
        )
    return sum((size - 1) * stride for size, stride in used) + dtype.itemsize


_MIN_VIEWED_BYTES = 1 << 20
"""Smaller values are copied, so that the buffers of their arrays can be donated soon."""


def to_host_buffer(value: np.ndarray, byte_strides: Sequence[int] | None) -> Buffer:
    """Returns a value as a host buffer of the size that the strides need: copied, or viewed if large."""
    if byte_strides is None or not value.shape:
        if value.nbytes >= _MIN_VIEWED_BYTES and value.flags.c_contiguous:
            # Viewed as bytes: NumPy exports no buffers of types that are not its own.
            return memoryview(value.reshape(-1).view(np.uint8))
        return value.tobytes()
    data = bytearray(host_size(value.shape, value.dtype, byte_strides))
    if data:
        np.ndarray(value.shape, value.dtype, buffer=data, strides=tuple(byte_strides))[...] = value
    return data

"""Slices and functions of small plans."""

from __future__ import annotations

from typing import Any

from pathways.runtime.resources.virtual import VirtualSlice, make_virtual_device_set


def two_slices(size: int = 1) -> tuple[VirtualSlice, VirtualSlice]:
    """Returns two slices of one device set, each of `size` devices."""
    devices = make_virtual_device_set()
    return devices.add_slice(size, "x"), devices.add_slice(size, "x")


def double(x: Any) -> Any:
    return x * 2


def increment(x: Any) -> Any:
    return x + 1


def add(x: Any, y: Any) -> Any:
    return x + y

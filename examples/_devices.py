"""Devices for the examples: those of an accelerator if JAX has one, else CPU devices."""

from __future__ import annotations

import contextlib
import math

import jax

import pathways as pw


def fit(platform: str, count: int, slices: int, shape: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
    """Returns the shape of slices that fits the available devices.

    Args:
      platform: JAX's default platform. There may be any number of CPU devices.
      count: the number of its devices.
      slices: the number of slices of an example.
      shape: the shape that each should have.

    Returns:
      The shape that each can have, which is that of a single device if not even one slice fits, and whether
        they have to share devices.
    """
    size = math.prod(shape)
    if platform == "cpu" or count >= slices * size:
        return shape, False
    if count >= size:
        return shape, True
    return (1,) * len(shape), count < slices


def connect(
    slices: int, shape: tuple[int, ...], hosts: bool = False, islands: bool = False
) -> tuple[tuple[int, ...], bool]:
    """Connects to devices for the slices of an example; returns their shape, and `overlap` for `add_slice`.

    Args:
      slices: the number of its slices.
      shape: the shape that each should have.
      hosts: whether each gets CPU devices of a worker process of its own.
      islands: whether CPU devices of this process are cut into an island for each, as hosts are.
    """
    needed = slices * math.prod(shape)
    if hosts:
        pw.connect(hosts=slices, devices_per_host=math.prod(shape))
        return shape, False
    # JAX must start to report its default platform, and creates CPU devices only then. If it has started
    # already, `pw.connect` reports too few devices.
    if jax.config.jax_num_cpu_devices < needed:
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", needed)
    platform = jax.default_backend()
    if platform == "cpu":
        cluster = pw.connect(cpu_devices=needed, islands=slices if islands else None)
    else:
        cluster = pw.connect()
    return fit(platform, len(cluster.devices), slices, shape)


def slices(
    count: int, shape: tuple[int, ...] = (1,), axes: tuple[str, ...] = ("x",)
) -> list[pw.VirtualSlice]:
    """Returns equal slices for an example, on the available devices."""
    shape, overlap = connect(count, shape)
    devices = pw.make_virtual_device_set()
    return [devices.add_slice(shape, axes, overlap=overlap) for _ in range(count)]

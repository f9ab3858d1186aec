"""The physical side: islands of devices, and the hosts that they belong to.

The default cluster is this process: its JAX devices in one island, or in several equal ones.
"""

from __future__ import annotations

import dataclasses
import os
import threading

import jax

from pathways.runtime.xla import pjrt


@dataclasses.dataclass(frozen=True)
class Host:
    """A process that owns devices; `index` is its JAX process index."""

    index: int


@dataclasses.dataclass(frozen=True)
class Device:
    """A physical device: its position in the cluster, its host, its island, and JAX's object for it.

    Ids of devices differ between JAX processes by large gaps; positions count from zero.
    """

    position: int
    host: Host
    island: str
    handle: jax.Device
    stated_memory: int | None = None
    """Bytes of memory that programs may use, as `connect` was told."""

    @property
    def memory(self) -> int | None:
        """Bytes of memory that programs may use: as `connect` was told, else as JAX says.

        None on CPU devices that `connect` was told nothing about.
        """
        if self.stated_memory is not None:
            return self.stated_memory
        return (self.handle.memory_stats() or {}).get("bytes_limit")


@dataclasses.dataclass(frozen=True)
class Island:
    """Devices joined by a fast interconnect; a slice lies within one island."""

    name: str
    devices: tuple[Device, ...]


@dataclasses.dataclass(frozen=True)
class Cluster:
    """All devices that programs may use, grouped into islands."""

    islands: tuple[Island, ...]

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices, by position."""
        return tuple(device for island in self.islands for device in island.devices)

    @property
    def platform(self) -> str:
        """The platform that programs are lowered for: cpu, cuda, rocm, tpu."""
        return pjrt.platform_of(self.devices[0].handle)


MORE_CPU_DEVICES = (
    "for more CPU devices set PW_CPU_DEVICES={wanted} in the environment, or call "
    "pathways.connect(cpu_devices={wanted}) before anything else uses JAX"
)

_lock = threading.RLock()
_current: Cluster | None = None


def connect(
    *,
    cpu_devices: int | None = None,
    islands: int | None = None,
    platform: str | None = None,
    device_memory: int | None = None,
) -> Cluster:
    """Chooses the devices that programs of this process use, and returns them.

    Args:
      cpu_devices: use this number of CPU devices. JAX makes as many when it has not started yet.
      islands: divide the devices into this number of equal consecutive islands, one by default.
      platform: the JAX platform; by default that of `jax.devices()`, or cpu when `cpu_devices` is given.
      device_memory: bytes of memory that programs may use on each device, such as `16 * 2**30`. A program
        that takes more is refused when it is compiled. By default what JAX says (`bytes_limit` of
        `jax.Device.memory_stats()`); for CPU devices that is nothing, and nothing is refused.

    Raises:
      ValueError: a number below one, or islands that would not be equal.
      RuntimeError: fewer CPU devices than asked for, and JAX has already started; or slices are bound to
        devices of the present cluster.
    """
    global _current
    if cpu_devices is not None and cpu_devices < 1:
        raise ValueError(f"cpu_devices={cpu_devices}: expected at least 1")
    if not isinstance(device_memory, int | float | None):
        raise TypeError(f"device_memory={device_memory!r}: expected a number of bytes")
    if device_memory is not None and device_memory < 1:
        raise ValueError(f"device_memory={device_memory}: expected at least 1 byte")
    if cpu_devices is not None and platform not in (None, "cpu"):
        raise ValueError(f"cpu_devices={cpu_devices} with platform={platform!r}: expected platform='cpu'")
    with _lock:
        from pathways.runtime.resources import manager as resources

        if bound := resources.bound_slices():
            raise RuntimeError(
                f"connect: slices {', '.join(bound)} are bound to devices; release them, or connect first"
            )
        _current = _discover(cpu_devices, 1 if islands is None else islands, platform, device_memory)
        return _current


def cluster() -> Cluster:
    """The current cluster.

    The first call makes one of the devices that JAX sees, PW_CPU_DEVICES (a number of CPU devices) and
    PW_ISLANDS (a number of islands), unless `connect` was called before.
    """
    with _lock:
        if _current is None:
            return connect(cpu_devices=_environment("PW_CPU_DEVICES"), islands=_environment("PW_ISLANDS"))
        return _current


def _environment(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    if not text:
        return None
    if not text.isdecimal():
        raise ValueError(f"{variable}={text!r}: expected a number")
    return int(text)


def _discover(
    cpu_devices: int | None, islands: int, platform: str | None, device_memory: int | None = None
) -> Cluster:
    if cpu_devices is None:
        handles = jax.devices(platform) if platform else jax.devices()
    else:
        handles = _cpu_devices(cpu_devices)
    if islands < 1:
        raise ValueError(f"islands={islands}: expected at least 1")
    if len(handles) % islands:
        raise ValueError(f"islands={islands}: {len(handles)} devices do not divide into equal islands")
    size = len(handles) // islands
    groups = [handles[start : start + size] for start in range(0, len(handles), size)]
    return Cluster(
        tuple(
            Island(
                f"island{number}",
                tuple(
                    Device(
                        number * size + index,
                        Host(handle.process_index),
                        f"island{number}",
                        handle,
                        device_memory,
                    )
                    for index, handle in enumerate(group)
                ),
            )
            for number, group in enumerate(groups)
        )
    )


def _cpu_devices(wanted: int) -> list[jax.Device]:
    """The first `wanted` CPU devices, making them when JAX has not started yet."""
    # JAX refuses this setting once it has started; then the devices that it made must do.
    try:
        if jax.config.jax_num_cpu_devices < wanted:
            jax.config.update("jax_num_cpu_devices", wanted)
    except RuntimeError:
        pass
    devices = jax.devices("cpu")
    if len(devices) < wanted:
        raise RuntimeError(
            f"cpu_devices={wanted}: JAX has started with {len(devices)} CPU devices; "
            + MORE_CPU_DEVICES.format(wanted=wanted)
        )
    return devices[:wanted]

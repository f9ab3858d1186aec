"""Devices of this process: JAX's own, as a cluster, and as the meshes of slices that are bound to them.

The default cluster has the JAX devices of this process in one island, or in islands of equal size.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Sequence

import jax
import jax.extend.backend
import numpy as np

from pathways.runtime.plan.plan import SliceSpec
from pathways.runtime.resources.cluster import CPU_REMEDY, SERVER_REMEDY, Cluster, Device, DeviceIsland, Host
from pathways.runtime.resources.manager import Binding, ResourceError
from pathways.runtime.resources.process_cluster import Discover, ProcessCluster
from pathways.runtime.resources.status import SliceStatus
from pathways.runtime.resources.virtual import VirtualSlice
from pathways.runtime.xla import pjrt
from pathways.runtime.xla.tracebacks import boundary

_handles: dict[tuple[str, int], jax.Device] = {}
"""JAX's object for each discovered device, by platform and id."""

_FORMER_VARIABLES = {
    "PW_CPU_DEVICES": "set JAX_NUM_CPU_DEVICES={0}, or call pathways.connect(cpu_devices={0})",
    "PW_ISLANDS": "call pathways.connect(cpu_devices=8, islands={0}), with your number of devices",
}
"""Present settings that replace variables of the environment."""


@boundary
def connect(
    *,
    cpu_devices: int | None = None,
    islands: int | None = None,
    platform: str | None = None,
    device_memory: int | None = None,
) -> Cluster:
    """Connects to devices of this process, and returns their cluster.

    See `runtime.clusters.connect.connect`, which has all of these settings and also settings of hosts.
    """
    return process_cluster.connect(_discovery(cpu_devices, islands, platform, device_memory))


@boundary
def cluster() -> Cluster:
    """Returns the current cluster, without the present states of its islands.

    See `runtime.clusters.cluster_status.cluster`, which has them.
    """
    return process_cluster.cluster()


def bind(slices: Iterable[VirtualSlice], program: str) -> dict[VirtualSlice, Binding]:
    """Binds slices to devices of the current cluster; see `ResourceManager.bind`."""
    return process_cluster.bind(slices, program)


def binding_of(devices: Sequence[jax.Device], slice: SliceSpec) -> Binding:
    """Returns the binding of a slice to exactly these devices, even if other slices are bound to them."""
    described = [_device(device, position, "island0", None) for position, device in enumerate(devices)]
    return Binding(tuple(described), slice.shape, slice.axis_names, slice.name)


def devices_of_cluster() -> tuple[jax.Device, ...]:
    """Returns JAX's objects for all devices of the current cluster, which must be of this process."""
    return tuple(_handles[device.platform, device.id] for device in cluster().devices)


def slice_statuses() -> tuple[SliceStatus, ...]:
    """Returns the status of each slice that has devices."""
    return tuple(
        SliceStatus(slice.name, binding.island, binding.positions, binding.program)
        for slice, binding in process_cluster.manager().holders().items()
    )


def release(slice: VirtualSlice) -> None:
    """Releases the devices of a slice; programs that are loaded there keep running.

    Args:
      slice: the slice; one without devices is left as it is.
    """
    process_cluster.release(slice)


def check_environment() -> None:
    """Rejects variables that were settings of devices.

    Raises:
      ValueError: one is set; names the present setting.
    """
    for variable, present in _FORMER_VARIABLES.items():
        if value := os.environ.get(variable):
            raise ValueError(f"{variable}={value} has no effect any more: {present.format(value)}")


def discover(
    cpu_devices: int | None = None,
    islands: int | None = None,
    platform: str | None = None,
    device_memory: int | None = None,
) -> Cluster:
    """Returns the cluster of this process, for arguments that `connect` has checked."""
    handles = _jax_devices(platform) if cpu_devices is None else _cpu_devices(cpu_devices)
    if islands is None:
        # A device of `pw-proxy` has the index of its slice, if the server has several slices.
        numbers = [getattr(handle, "slice_index", 0) if pjrt.is_proxied(handle) else 0 for handle in handles]
    elif islands < 1:
        raise ValueError(f"islands={islands}: expected at least 1")
    elif len(handles) % islands:
        raise ValueError(f"islands={islands}: {len(handles)} devices do not divide into equal islands")
    else:
        numbers = [position * islands // len(handles) for position in range(len(handles))]
    groups: dict[str, list[Device]] = {}
    for position, (handle, number) in enumerate(zip(handles, numbers, strict=True)):
        device = _device(handle, position, f"island{number}", device_memory)
        groups.setdefault(device.island, []).append(device)
    remedy = SERVER_REMEDY if any(map(pjrt.is_proxied, handles)) else None
    return Cluster(tuple(DeviceIsland(name, tuple(devices)) for name, devices in groups.items()), remedy)


def devices_of(binding: Binding) -> tuple[jax.Device, ...]:
    """Returns JAX's objects for the devices of a slice, in the order of its mesh."""
    return tuple(_handles[device.platform, device.id] for device in binding.devices)


def memory_kinds() -> tuple[str, ...]:
    """Returns the kinds of memory that each device of the cluster has, as JAX names them.

    Devices of hosts have the kinds of their platform in this process, if any, else the kinds of JAX's types.
    """
    handles = [
        _handles[key] for device in cluster().devices if (key := (device.platform, device.id)) in _handles
    ]
    if not handles:
        return ("device", "pinned_host")
    return tuple(memory.kind for memory in handles[0].addressable_memories())


def live_arrays(platform: str | None = None) -> list[jax.Array]:
    """Returns the live arrays of this process on devices of a platform, or of all platforms.

    `jax.live_arrays` returns the arrays of a single platform, and fails if JAX has no devices of it.
    """
    return [
        array
        for name, client in jax.extend.backend.backends().items()
        if platform in (None, name)
        for array in client.live_arrays()
    ]


def is_here(device: jax.Device) -> bool:
    """Returns whether a device belongs to this process, not to another process of its island."""
    return device.process_index == jax.process_index()


def mesh_of(binding: Binding) -> jax.sharding.Mesh:
    """Returns the devices of a slice as a JAX mesh with the names of its axes."""
    handles = np.array(devices_of(binding), dtype=object)
    return jax.sharding.Mesh(handles.reshape(binding.shape), binding.axis_names)


def _discovery(
    cpu_devices: int | None = None,
    islands: int | None = None,
    platform: str | None = None,
    device_memory: int | None = None,
) -> Discover:
    """Checks the settings; returns `discover` with them."""
    check_environment()
    if cpu_devices is not None and cpu_devices < 1:
        raise ValueError(f"cpu_devices={cpu_devices}: expected at least 1")
    if not isinstance(device_memory, int | float | None):
        raise TypeError(f"device_memory={device_memory!r}: expected a number of bytes")
    if device_memory is not None and device_memory < 1:
        raise ValueError(f"device_memory={device_memory}: expected at least 1 byte")
    if cpu_devices is not None and platform not in (None, "cpu"):
        raise ValueError(f"cpu_devices={cpu_devices} with platform={platform!r}: expected platform='cpu'")
    return functools.partial(discover, cpu_devices, islands, platform, device_memory)


def _device(handle: jax.Device, position: int, island: str, stated_memory: int | None) -> Device:
    """Describes a device of JAX, and registers it in `_handles`."""
    platform = pjrt.platform_of(handle)
    _handles[platform, handle.id] = handle
    memory = memory_limit(handle) if stated_memory is None else stated_memory
    return Device(position, handle.id, platform, Host(handle.process_index), island, memory)


def memory_limit(handle: jax.Device) -> int | None:
    """Returns the bytes of memory that programs may use on a device; None if JAX does not report them."""
    # JAX has no statistics of devices of other processes.
    if handle.process_index != jax.process_index() or pjrt.is_proxied(handle):
        return None
    return (handle.memory_stats() or {}).get("bytes_limit")


def _cpu_devices(count: int) -> list[jax.Device]:
    """Returns the first CPU devices; creates as many if JAX has not started yet."""
    # JAX rejects this setting once it has started. Then its devices must be enough.
    try:
        if jax.config.jax_num_cpu_devices < count:
            jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        pass
    devices = _jax_devices("cpu")
    if len(devices) >= count:
        return devices[:count]
    started = f"JAX has started with {len(devices)} CPU device{'s' if len(devices) > 1 else ''}"
    raise RuntimeError(f"cpu_devices={count}: {started}; {CPU_REMEDY.format(count=count)}")


def _jax_devices(platform: str | None) -> list[jax.Device]:
    """Returns `jax.devices`, with an error that names the setting of a missing platform."""
    try:
        return jax.devices(platform)
    # For a platform that JAX knows, but has no plugin for, an assertion in JAX fails.
    except (RuntimeError, AssertionError) as error:
        chosen = jax.config.jax_platforms
        setting = f"JAX_PLATFORMS={chosen}: " if chosen else ""
        missing = "no devices" if platform is None else f"no {platform} devices"
        line = str(error).partition("\n")[0]
        raise ResourceError(f"{setting}JAX has {missing} here{line and f' ({line})'}") from None


process_cluster = ProcessCluster(lambda: _discovery()())
"""The cluster that all programs of this process share."""

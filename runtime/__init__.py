"""The runtime: virtual and physical devices, and loaded programs. Imports its rooms, and jax, when used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathways.runtime.clusters.connect import connect
    from pathways.runtime.local.devices import bind, release
    from pathways.runtime.local.load import Executable, Port, load
    from pathways.runtime.resources.cluster import Cluster, Device, DeviceIsland, Host
    from pathways.runtime.resources.manager import Binding, ResourceError, ResourceManager
    from pathways.runtime.resources.virtual import VirtualDeviceSet, VirtualSlice, make_virtual_device_set
    from pathways.runtime.xla.compile_cache import CompileError

_MODULES = {
    "Binding": "resources.manager",
    "Cluster": "resources.cluster",
    "CompileError": "xla.compile_cache",
    "Device": "resources.cluster",
    "Executable": "local.load",
    "Host": "resources.cluster",
    "DeviceIsland": "resources.cluster",
    "Port": "local.load",
    "ResourceError": "resources.manager",
    "ResourceManager": "resources.manager",
    "VirtualDeviceSet": "resources.virtual",
    "VirtualSlice": "resources.virtual",
    "bind": "local.devices",
    "connect": "clusters.connect",
    "load": "local.load",
    "make_virtual_device_set": "resources.virtual",
    "release": "local.devices",
}

__all__ = [
    "Binding",
    "Cluster",
    "CompileError",
    "Device",
    "DeviceIsland",
    "Executable",
    "Host",
    "Port",
    "ResourceError",
    "ResourceManager",
    "VirtualDeviceSet",
    "VirtualSlice",
    "bind",
    "connect",
    "load",
    "make_virtual_device_set",
    "release",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__

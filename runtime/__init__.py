"""The runtime: virtual and physical devices, and loaded programs. Imports jax only when used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathways.runtime.cluster import Cluster, Device, Host, Island, connect
    from pathways.runtime.compile_cache import CompileError
    from pathways.runtime.executable import Executable, Port, load
    from pathways.runtime.resources import Binding, ResourceError, ResourceManager, bind, release
    from pathways.runtime.virtual import VirtualDeviceSet, VirtualSlice, make_virtual_device_set

_MODULES = {
    "Binding": "resources",
    "Cluster": "cluster",
    "CompileError": "compile_cache",
    "Device": "cluster",
    "Executable": "executable",
    "Host": "cluster",
    "Island": "cluster",
    "Port": "executable",
    "ResourceError": "resources",
    "ResourceManager": "resources",
    "VirtualDeviceSet": "virtual",
    "VirtualSlice": "virtual",
    "bind": "resources",
    "connect": "cluster",
    "load": "executable",
    "make_virtual_device_set": "virtual",
    "release": "resources",
}

__all__ = [
    "Binding",
    "Cluster",
    "CompileError",
    "Device",
    "Executable",
    "Host",
    "Island",
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

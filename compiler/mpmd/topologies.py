"""Slices of topologies: each mesh has one, on exactly its devices."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping

import jax

from pathways.compiler.lower.phases import ProgramError
from pathways.passes.import_.mpmd.slices import symbol_of
from pathways.runtime.clusters.connect import controller
from pathways.runtime.resources.virtual import VirtualDeviceSet, VirtualSlice, make_virtual_device_set
from pathways.runtime.xla import pjrt

Topology = Mapping[str, jax.sharding.Mesh]

_Pinned = tuple[tuple[str, int], ...]

_lock = threading.Lock()
_sets: weakref.WeakValueDictionary[object, VirtualDeviceSet] = weakref.WeakValueDictionary()
_slices: weakref.WeakValueDictionary[object, VirtualSlice] = weakref.WeakValueDictionary()
"""Slices by topology and mesh name: programs of one topology share arrays while one of them lives."""


def slices_of(
    topology: Topology, chosen: Mapping[str, VirtualSlice] | None, program: str
) -> dict[str, VirtualSlice]:
    """Returns the slice of each mesh of a topology.

    Args:
      topology: the meshes by name.
      chosen: slices of the user for some of them.
      program: the name of the program, for messages.

    Raises:
      ValueError: a slice is for no mesh, or differs from it.
      ProgramError: the devices of a mesh belong to this process, and programs run on hosts.
    """
    chosen = dict(chosen or {})
    for name, virtual in chosen.items():
        _check(topology, name, virtual)
    missing = [name for name in topology if name not in chosen]
    if missing and controller() is not None:
        raise ProgramError(
            f"program '{program}': the devices of mesh '{missing[0]}' belong to this process, but programs "
            f"run on hosts: give a slice for each mesh, from_mpmd(..., slices={{{missing[0]!r}: slice, ...}})"
        )
    pinned = {name: _devices(topology[name]) for name in topology}
    key = tuple((name, mesh.axis_names, mesh.devices.shape, pinned[name]) for name, mesh in topology.items())
    with _lock:
        created: dict[str, VirtualSlice] = {}
        devices = _sets.get(key)
        if devices is None:
            devices = _sets[key] = make_virtual_device_set()
        for name in missing:
            slice_ = _slices.get((key, name))
            if slice_ is None:
                # Meshes of one topology may have common devices, which slices share by `overlap` alone.
                shared = [device for other in topology if other != name for device in pinned[other]]
                slice_ = _slices[key, name] = VirtualSlice(
                    devices,
                    topology[name].devices.shape,
                    topology[name].axis_names,
                    name=symbol_of(name),
                    overlap=not set(shared).isdisjoint(pinned[name]),
                    pinned=pinned[name],
                )
            created[name] = slice_
    return {name: chosen.get(name) or created[name] for name in topology}


def _devices(mesh: jax.sharding.Mesh) -> _Pinned:
    return tuple((pjrt.platform_of(device), device.id) for device in mesh.devices.flat)


def _check(topology: Topology, name: str, virtual: VirtualSlice) -> None:
    if name not in topology:
        raise ValueError(f"slices: the topology has no mesh '{name}', only {', '.join(topology)}")
    if not isinstance(virtual, VirtualSlice):
        raise TypeError(f"slices: for mesh '{name}' expected a slice, got {type(virtual).__name__}")
    mesh = topology[name]
    if (virtual.axis_names, virtual.shape) != (mesh.axis_names, mesh.devices.shape):
        raise ValueError(f"slices: mesh '{name}' has {dict(mesh.shape)}, {virtual!r} differs from it")

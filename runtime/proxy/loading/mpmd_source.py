"""Checked programs of clients on several meshes, in scheduled form, before a backend loads them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from jaxlib.mlir import ir

from pathways.runtime.plan.plan import Argument, Plan, Result, Slot
from pathways.runtime.plan.stored import Stored
from pathways.runtime.proxy.arrays.placements import ArrayPlacement, ArraySpec
from pathways.runtime.xla import ifrt

SliceDevices = Mapping[str, Sequence[Any]]
"""The devices of each slice of a program, by the name of the slice, in the order of its mesh."""


@dataclasses.dataclass(frozen=True)
class MpmdPort:
    """Argument or result of a program on one slice.

    Attributes:
      number: the number of the argument or result in the plan.
      slice: the name of the slice.
    """

    number: int
    slice: str
    spec: ArraySpec


@dataclasses.dataclass(frozen=True)
class MpmdInterface:
    """Arguments and results of a program, as its clients and its steps have them.

    Attributes:
      name: the name of its module.
      devices: its devices in the order of the client, each once.
      slices: the devices of its slices.
      inputs: the arguments on each slice that reads them.
      outputs: the results on each slice that has them, in the order of clients.
      parameters: the required type and placement of each argument of clients.
      read: for each of `inputs`, the number of the argument of clients.
      donated: the arguments of clients that an execution consumes.
      copies: for each argument of clients, other ones that have the same value on other slices.
    """

    name: str
    devices: tuple[Any, ...]
    slices: SliceDevices
    inputs: tuple[MpmdPort, ...]
    outputs: tuple[MpmdPort, ...]
    parameters: tuple[ArraySpec, ...]
    read: tuple[int, ...]
    donated: tuple[int, ...]
    copies: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, plan: Plan, devices: Sequence[Any], slices: SliceDevices, *, by_port: bool) -> MpmdInterface:
        """Returns the interface of a plan.

        Args:
          devices: the devices that the client names.
          by_port: whether clients pass an argument once for each slice of its readers, as Pathways does.
        """
        passed = [argument for argument in plan.arguments if argument.constant is None]
        inputs, outputs = (tuple(_ports(plan, slices, values)) for values in (passed, plan.results))
        if by_port:
            read = tuple(range(len(inputs)))
            arguments = [passed[port.number] for port in inputs]
            copies = tuple(tuple(_copies(inputs, arguments, number)) for number in read)
        else:
            read = tuple(port.number for port in inputs)
            arguments = passed
            copies = ((),) * len(passed)
        specs = {number: port.spec for number, port in zip(read, inputs, strict=True)}
        # An argument that nothing reads may be on any device.
        anywhere = ArrayPlacement(tuple(devices[:1]), None, None)
        return cls(
            plan.name,
            tuple(dict.fromkeys(devices)),
            slices,
            inputs,
            outputs,
            tuple(
                specs.get(number) or ArraySpec(_dtype(argument.type.dtype), argument.type.shape, anywhere)
                for number, argument in enumerate(arguments)
            ),
            read,
            tuple(number for number, argument in enumerate(arguments) if argument.donated),
            copies,
        )

    @property
    def results(self) -> tuple[ArraySpec, ...]:
        """The type and placement of each result of clients."""
        return tuple(port.spec for port in self.outputs)


@dataclasses.dataclass(frozen=True)
class MpmdSource:
    """Program that a backend is to compile and load.

    Attributes:
      module: the program in the form `scheduled`.
      plan: its plan.
      stored: the contents that the module only declares; None if it holds all itself.
      interface: its arguments and results.
      argument_names: the names of the arguments of the plan, for messages.
    """

    module: ir.Module
    plan: Plan
    stored: Stored | None
    interface: MpmdInterface
    argument_names: tuple[str, ...]


def _copies(inputs: Sequence[MpmdPort], arguments: Sequence[Argument], number: int) -> Iterable[int]:
    replicas = arguments[number].replicas
    if replicas is None or replicas.split is None:
        for other, port in enumerate(inputs):
            if other != number and port.number == inputs[number].number:
                yield other


def _ports(plan: Plan, slices: SliceDevices, values: Sequence[Argument | Result]) -> Iterable[MpmdPort]:
    for number, value in enumerate(values):
        for name, slot in value.slots.items():
            yield MpmdPort(number, name, _spec(plan, slot, name, tuple(slices[name])))


def _spec(plan: Plan, slot: Slot, name: str, devices: tuple[Any, ...]) -> ArraySpec:
    slice, type_ = plan.slices[name], plan.slot_types[slot]
    hlo = None
    if len(devices) > 1:
        dims = [axes[0] if len(axes) == 1 else axes or None for axes in plan.sharding(slot)]
        mesh = AbstractMesh(slice.shape, slice.axis_names)
        hlo = ifrt.hlo_of(NamedSharding(mesh, PartitionSpec(*dims)), len(type_.shape))
    return ArraySpec(_dtype(type_.dtype), type_.shape, ArrayPlacement(devices, plan.memory_kind(slot), hlo))


def _dtype(name: str) -> np.dtype[Any]:
    return jax.numpy.dtype(name)

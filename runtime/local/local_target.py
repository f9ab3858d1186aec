"""Binding of the launches, transfers and results of a plan to the devices of its slices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.profiler import TraceAnnotation
from jax.sharding import Mesh

from pathways.runtime.local import failures
from pathways.runtime.local.checks import check_direct, check_routed, check_shardings, check_shards
from pathways.runtime.local.codegen import Arrays, Kernel, StepTarget
from pathways.runtime.local.devices import is_here
from pathways.runtime.local.slots import SlotArrays, aval_of, aval_of_block
from pathways.runtime.plan.plan import Launch, Plan, Slot, Transfer
from pathways.runtime.xla import pjrt
from pathways.runtime.xla.launch_order import LAUNCH_ORDER

DeviceExecutables = Mapping[tuple[str, str], Sequence[pjrt.LoadedExecutable]]
"""The executables of each computation on each slice, by their names: one, or one for each device if local."""


class LocalTarget(StepTarget):
    """Target of generated functions on devices of this process.

    Args:
      meshes: the devices of its slices, by name.
      executables: its computations, loaded on these devices.
    """

    span = TraceAnnotation
    copy_arrays = staticmethod(pjrt.copy_arrays)

    def __init__(
        self,
        plan: Plan,
        meshes: Mapping[str, Mesh],
        executables: DeviceExecutables,
        slots: SlotArrays,
        result_avals: Sequence[pjrt.Aval],
        argument_names: Sequence[str],
    ) -> None:
        self.constants = _place_constants(plan, slots)
        self.order = LAUNCH_ORDER if any(mesh.size > 1 for mesh in meshes.values()) else None
        self.is_profiled = pjrt.is_profiled
        passed = [argument for argument in plan.arguments if argument.constant is None]
        slot_names = [
            (slot, name)
            for argument, name in zip(passed, argument_names, strict=True)
            for slot in argument.slots.values()
        ]
        devices = {name: tuple(mesh.devices.flat) for name, mesh in meshes.items()}
        self.explain = functools.partial(failures.explain, plan, slot_names, devices)
        self._plan = plan
        # The devices of this process; an array may also have shards on other processes of its island.
        self._devices = {name: tuple(filter(is_here, mesh.devices.flat)) for name, mesh in meshes.items()}
        self._executables = executables
        # Bound once: each access of a method creates an object, and a generated function has a name for each.
        self._execute = {pair: on_devices[0].execute_sharded for pair, on_devices in executables.items()}
        self._slots = slots
        self._result_avals = result_avals
        self._kernels: dict[tuple[object, ...], Kernel] = {}
        self._copies: dict[tuple[object, ...], tuple[Any, ...]] = {}
        self._routed: dict[tuple[object, ...], Callable[[Arrays], Arrays]] = {}

    def kernel(self, launch: Launch) -> Kernel:
        """Returns the kernel of a launch.

        Raises:
          CompileError: an operand or a result has another sharding in the executable than in the plan.
          ValueError: the computation is for other shards, so that the plan is wrong.
        """
        avals = tuple(self._slots.avals[slot] for slot in launch.results)
        shardings = tuple(self._slots.shardings[slot] for slot in (*launch.operands, *launch.results))
        local = self._plan.computations[launch.computation].local
        in_shards = self._are_in_shards((*launch.operands, *launch.results)) if local else ()
        key = (launch.computation, launch.slice, avals, shardings, in_shards)
        if key not in self._kernels:
            self._kernels[key] = self._on_each_device(launch) if local else self._on_all_devices(launch)
        return self._kernels[key]

    def copies(self, transfers: Sequence[Transfer]) -> tuple[Any, ...]:
        """Returns the arguments of `pjrt.copy_arrays`, after the arrays, for all these transfers at once.

        Raises:
          ValueError: one of them sends a device a shard that it does not need, so that the plan is wrong.
        """
        for transfer in transfers:
            check_direct(self._plan, transfer, self._slots.shardings)
        shardings = tuple(self._slots.shardings[transfer.results[0]] for transfer in transfers)
        if shardings not in self._copies:
            devices = [pjrt.device_list(list(sharding.mesh.devices.flat)) for sharding in shardings]
            self._copies[shardings] = devices, list(shardings), [pjrt.ALWAYS_COPY] * len(shardings)
        return self._copies[shardings]

    def routed(self, transfer: Transfer) -> Callable[[Arrays], Arrays] | None:
        """Returns a function for a transfer of single shards; None for one that `pjrt.copy_arrays` can do.

        Raises:
          ValueError: the shards have different types, so that the plan is wrong.
        """
        if transfer.routes is None:
            if self._is_here(transfer.results[0]):
                return None
            check_direct(self._plan, transfer, self._slots.shardings)
            return self._shard_by_shard(transfer.operands, transfer.results, transfer.dst)
        check_routed(self._plan, transfer)
        avals = tuple(self._slots.avals[slot] for slot in transfer.results)
        in_shards = self._are_in_shards((*transfer.operands, *transfer.results))
        key = (self._slots.shardings[transfer.results[0]], avals, transfer.routes, in_shards)
        if key not in self._routed:
            self._routed[key] = pjrt.route(
                transfer.routes,
                self._devices[transfer.dst],
                self._readers(transfer.operands),
                self._makers(transfer.results),
                self._plan.memory_kind(transfer.results[0]),
            )
        return self._routed[key]

    def finish(self, result: int, slice: str) -> Callable[[Any], Any] | None:
        """Returns the function that finishes a result of the program on a slice; None if it needs none.

        It copies an array that the caller must not donate, and sets the aval of the result.
        """
        slot = self._plan.results[result].slots[slice]
        sharding = self._slots.shardings[slot]
        aval = aval_of_block(self._plan.results[result], self._result_avals[result])
        rewrap = None if aval == self._slots.avals[slot] else pjrt.rewrap(aval, sharding)
        if self._plan.uncopied_slots.get(slot) == result:
            return rewrap
        devices = pjrt.device_list(self._devices[slice])
        in_shards = None if self._is_here(slot) else self._shard_by_shard((slot,), (slot,), slice)

        def copy(array: Any) -> Any:
            if in_shards is not None:
                (copied,) = in_shards([array])
            else:
                (copied,) = pjrt.copy_arrays([array], [devices], [sharding], [pjrt.ALWAYS_COPY])
            return copied if rewrap is None else rewrap(copied)

        return copy

    def _is_here(self, slot: Slot) -> bool:
        """Returns whether all devices of the array in a slot belong to this process."""
        return bool(self._slots.shardings[slot].is_fully_addressable)

    def _shard_by_shard(
        self, operands: Sequence[Slot], results: Sequence[Slot], slice: str
    ) -> Callable[[Arrays], Arrays]:
        """Returns a function that copies the shards of this process alone.

        A copy of the whole array would access devices of other processes.
        """
        devices = self._devices[slice]
        routes = [tuple((n, k) for k in range(len(devices))) for n in range(len(operands))]
        kind = self._plan.memory_kind(results[0])
        return pjrt.route(routes, devices, self._readers(operands), self._makers(results), kind)

    def _on_all_devices(self, launch: Launch) -> Kernel:
        """Returns a kernel that executes once for all devices of the slice."""
        (executable,) = self._executables[launch.computation, launch.slice]
        devices = self._devices[launch.slice]
        if self._plan.slices[launch.slice].size > 1:
            check_shardings(self._plan, launch, self._slots.shardings, executable)
        computation = self._plan.computations[launch.computation]
        handlers = [
            pjrt.result_handler(
                self._slots.avals[slot],
                self._slots.shardings[slot],
                f"{launch.computation} on {launch.slice}",
            )
            for slot in launch.results
        ]
        execute = self._execute[launch.computation, launch.slice]
        if computation.donated and pjrt.checks_values():
            execute = pjrt.without_donation(execute, computation.donated, devices)
        return Kernel(execute, handlers, pjrt.token_registrar(devices) if computation.effects else None)

    def _on_each_device(self, launch: Launch) -> Kernel:
        """Returns a kernel that executes on each device of the slice by itself, with its shards."""
        check_shards(self._plan, launch)
        kinds = [self._plan.memory_kind(slot) for slot in launch.results]
        types = self._plan.computations[launch.computation].results
        execute = pjrt.on_each_device(
            self._executables[launch.computation, launch.slice],
            self._devices[launch.slice],
            [(aval_of(type_, kind), kind) for type_, kind in zip(types, kinds, strict=True)],
            self._readers(launch.operands),
            self._makers(launch.results),
        )
        return Kernel(execute, None)

    def _are_in_shards(self, slots: Sequence[Slot]) -> tuple[bool, ...]:
        return tuple(slot in self._slots.in_shards for slot in slots)

    def _readers(self, slots: Sequence[Slot]) -> list[pjrt.ShardReader]:
        return [_unchanged if slot in self._slots.in_shards else pjrt.shards_of for slot in slots]

    def _makers(self, slots: Sequence[Slot]) -> list[pjrt.ShardMaker]:
        return [
            _unchanged
            if slot in self._slots.in_shards
            else pjrt.shard_joiner(self._slots.avals[slot], self._slots.shardings[slot])
            for slot in slots
        ]


def _place_constants(plan: Plan, slots: SlotArrays) -> dict[Slot, jax.Array]:
    """Copies constants to their slices; returns the arrays by slot."""
    names = {
        slot: argument.constant
        for argument in plan.arguments
        if argument.constant is not None
        for slot in argument.slots.values()
    }
    placed = {}
    # Without x64, JAX would narrow a constant of 64 bits, but the module was compiled for its own dtype.
    with jax.enable_x64(True):
        for slot, name in names.items():
            value = plan.constants[name]
            array = value if isinstance(value, jax.Array) else np.asarray(value, slots.avals[slot].dtype)
            sharding = slots.shardings[slot]
            if sharding.is_fully_addressable:
                placed[slot] = pjrt.device_put(array, sharding)
            else:
                # `device_put` would have the hosts compare their values first.
                placed[slot] = jax.make_array_from_callback(array.shape, sharding, array.__getitem__)
    return placed


def _unchanged(shards: Any) -> Any:
    return shards

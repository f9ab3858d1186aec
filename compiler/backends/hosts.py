"""The devices of workers on hosts."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from pathways.compiler.backends.backend import Backend, Scheduled
from pathways.compiler.backends.hosts_executable import HostsExecutable
from pathways.compiler.backends.relocation import relocate
from pathways.compiler.frontend.notices import warn
from pathways.compiler.lower.phases import ProgramError
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.runtime.hosts.client.array import Array
from pathways.runtime.hosts.client.client import Client
from pathways.runtime.hosts.cluster.host import Location
from pathways.runtime.hosts.cluster.hosted import HostedProgram
from pathways.runtime.hosts.protocol.programs import BoundProgram, SlicePlace
from pathways.runtime.hosts.splitting.splitting import SplitError, split
from pathways.runtime.resources.manager import Binding
from pathways.runtime.xla import pjrt


class HostsBackend(Backend):
    """Workers on hosts: each gets its part of a program, and compiles what it runs.

    Args:
      controller: the controller of the workers.
    """

    def __init__(self, controller: Client) -> None:
        self._controller = controller

    def load(
        self,
        program: Scheduled,
        bindings: Mapping[str, Binding],
        code: Mapping[tuple[str, str], bytes | memoryview] | None = None,
    ) -> HostsExecutable:
        """See `Backend.load`; hosts compile everything, whatever code there is."""
        if pjrt.checks_values():
            _warn_of_unchecked_values()
        loaded = self._load(program, bindings)
        relocate_there = functools.partial(relocate, self._controller, self._load)
        return HostsExecutable(
            self._controller, loaded, program.plan, program.interface, program.signature, relocate_there
        )

    def _load(self, program: Scheduled, bindings: Mapping[str, Binding]) -> HostedProgram:
        plan = program.plan
        for computation in plan.computations.values():
            if computation.callbacks:
                raise ProgramError(
                    f"program '{plan.name}': computation {computation.name} calls back into Python "
                    "(jax.pure_callback, jax.debug.print, ...), which workers on hosts cannot; pw.on_hosts "
                    "calls functions there, between programs"
                )
        places = {name: _place(binding) for name, binding in bindings.items()}
        bound = _bound(program, places)
        try:
            loaded = self._controller.load(
                bound, functools.partial(split, bound, plan, program.module.context)
            )
        except SplitError as error:
            raise ProgramError(str(error)) from None
        owners = {name: place.owners for name, place in places.items()}
        self._controller.traces.add(loaded, loaded.number, plan, owners)
        return loaded


@functools.cache
def _warn_of_unchecked_values() -> None:
    """Warns once that hosts do not look for NaNs and infinities."""
    warn(
        "jax_debug_nans and jax_debug_infs check no value on hosts; to find the operation, run the program "
        "in one process, on devices of pw.connect(cpu_devices=...)"
    )


def bring(controller: Client, array: Array, where: Location) -> None:
    """Brings an array to where it is wanted, from hosts to hosts, or from here if replicas share it.

    Raises:
      HostError: a host is gone.
    """
    if relocate(controller, HostsBackend(controller)._load, [(array, array, where)]):
        array.add_copy(where, controller.put(array.fetch(), where))


def _place(binding: Binding) -> SlicePlace:
    return SlicePlace(
        int(binding.island.removeprefix("island")),
        tuple(device.id for device in binding.devices),
        tuple(device.host.index for device in binding.devices),
        binding.device_memory,
        binding.shape,
        binding.axis_names,
    )


def _bound(program: Scheduled, places: dict[str, SlicePlace]) -> BoundProgram:
    """The program as it is sent."""
    stored = program.stored
    return BoundProgram(
        program.plan.name,
        bytecode_of(program.module),
        places,
        {} if stored is None else dict(stored.computations),
        {} if stored is None else stored.plain_constants(),
        tuple(program.interface.argument_paths),
        tuple(bool(aval.weak_type) for aval in program.interface.out_avals),
    )

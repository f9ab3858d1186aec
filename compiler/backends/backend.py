"""Backends: the devices of this process, or of workers on hosts, for which programs are compiled."""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping
from typing import override

from pathways.compiler.backends.executable import ProgramExecutable, Scheduled
from pathways.compiler.backends.hosts_executable import HostsExecutable
from pathways.compiler.backends.local_executable import LocalExecutable
from pathways.compiler.backends.prints import module_for_hosts
from pathways.compiler.backends.relocation import relocate
from pathways.compiler.frontend.user_code import warn
from pathways.compiler.lower.phases import ProgramError
from pathways.runtime.hosts.client.array import Array
from pathways.runtime.hosts.client.client import Client
from pathways.runtime.hosts.client.connect import controller
from pathways.runtime.hosts.cluster.host import Location
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.protocol.programs import BoundProgram, SlicePlace
from pathways.runtime.hosts.splitting.splitting import SplitError, split
from pathways.runtime.local.load import load
from pathways.runtime.resources.manager import Binding
from pathways.runtime.xla import pjrt


class Backend(abc.ABC):
    """Devices of a cluster, in this process or in others.

    A loaded program is a `ProgramExecutable`, which transfers arguments to its devices. Results are fetched
    and freed as arrays: they are `jax.Array`s of this process, or `pathways.Array`s.
    """

    @abc.abstractmethod
    def load(
        self,
        program: Scheduled,
        bindings: Mapping[str, Binding],
        code: Mapping[tuple[str, str], bytes | memoryview] | None = None,
    ) -> ProgramExecutable:
        """Compiles every computation of a program and returns its executable.

        Args:
          bindings: the devices of each of its slices.
          code: code that is compiled already, by the names of computation and slice.

        Raises:
          ResourceError: the devices have too little memory; says how much each slice needs.
          CompileError: XLA rejects a computation; names it.
          ProgramError: the program cannot run there; says why.
          HostError: a host was lost, or cannot compile its program.
        """


class LocalBackend(Backend):
    """The devices of this process; see `Backend`."""

    @override
    def load(
        self,
        program: Scheduled,
        bindings: Mapping[str, Binding],
        code: Mapping[tuple[str, str], bytes | memoryview] | None = None,
    ) -> LocalExecutable:
        executable = load(
            program.plan,
            bindings,
            result_avals=program.interface.out_avals,
            callbacks=program.callbacks,
            argument_names=program.interface.argument_paths,
            code=code,
        )
        return LocalExecutable(executable, program.interface, program.signature, program.keepalive)


class HostsBackend(Backend):
    """Workers on hosts: each gets its host program, and compiles that."""

    def __init__(self, controller: Client) -> None:
        self._controller = controller

    def load(
        self,
        program: Scheduled,
        bindings: Mapping[str, Binding],
        code: Mapping[tuple[str, str], bytes | memoryview] | None = None,
    ) -> HostsExecutable:
        """See `Backend.load`; hosts compile everything, and use no stored code."""
        if pjrt.checks_values():
            _warn_of_unchecked_values()
        loaded = self._load(program, bindings)
        relocate_there = functools.partial(relocate, self._controller, self._load)
        return HostsExecutable(
            self._controller, loaded, program.plan, program.interface, program.signature, relocate_there
        )

    def _load(self, program: Scheduled, bindings: Mapping[str, Binding]) -> HostedProgram:
        plan = program.plan
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
    """Warns once that hosts do not check values for NaNs and infinities."""
    warn(
        "jax_debug_nans and jax_debug_infs check no value on hosts; to find the operation, run the program "
        "in one process, on devices of pw.connect(cpu_devices=...)"
    )


def relocate_array(cluster: Client, array: Array, where: Location) -> None:
    """Brings an array to a location, from hosts to hosts, or through this process if replicas share it.

    Raises:
      HostError: a host was lost.
    """
    if relocate(cluster, HostsBackend(cluster)._load, [(array, array, where)]):
        array.put(where, array.fetch())


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
    """Returns the program as it is sent to hosts."""
    stored = program.stored
    return BoundProgram(
        program.plan.name,
        module_for_hosts(program),
        places,
        {} if stored is None else dict(stored.computations),
        {} if stored is None else stored.plain_constants(),
        tuple(program.interface.argument_paths),
        tuple(bool(aval.weak_type) for aval in program.interface.out_avals),
    )


def backend() -> Backend:
    """Returns the backend of `pathways.connect`, or that of the devices of this process."""
    hosts = controller()
    return LocalBackend() if hosts is None else HostsBackend(hosts)

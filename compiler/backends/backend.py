"""Loading of programs on a backend: the devices of this process, or of workers on hosts."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import msgspec
from jaxlib.mlir import ir

from pathways.compiler.backends.executable import ProgramExecutable, Scheduled, bind_slices
from pathways.compiler.backends.hosts_executable import HostsExecutable
from pathways.compiler.backends.local_executable import LocalExecutable
from pathways.compiler.backends.prints import module_for_hosts
from pathways.compiler.backends.relocation import relocate
from pathways.compiler.frontend.user_code import warn
from pathways.compiler.lower.phases import ProgramError
from pathways.dialect import make_context
from pathways.runtime.clusters.connect import controller
from pathways.runtime.hosts.client.array import Array
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.cluster.host import Location
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.protocol.programs import BoundProgram, SlicePlace, SplitProgram
from pathways.runtime.hosts.splitting.splitting import SplitError, split
from pathways.runtime.local.load import load
from pathways.runtime.resources.manager import Binding
from pathways.runtime.traces.file_trace import start_from_environment
from pathways.runtime.xla import pjrt


def load_program(
    program: Scheduled,
    bindings: Mapping[str, Binding],
    code: Mapping[tuple[str, str], bytes | memoryview] | None = None,
) -> ProgramExecutable:
    """Compiles every computation of a program for the devices of the cluster: of this process, or of hosts.

    Args:
      bindings: the devices of each of its slices.
      code: code that is compiled already, by the names of computation and slice; hosts use none.

    Raises:
      ResourceError: the devices have too little memory; says how much each slice needs.
      CompileError: XLA rejects a computation; names it.
      ProgramError: the program cannot run there; says why.
      HostError: a host was lost, or cannot compile its program.
    """
    hosts = controller()
    if hosts is not None:
        if pjrt.checks_values():
            _warn_of_unchecked_values()
        return HostsLoader(hosts, program).load(bindings)
    start_from_environment()
    executable = load(
        program.plan,
        bindings,
        result_avals=program.interface.out_avals,
        callbacks=program.callbacks,
        argument_names=program.interface.argument_paths,
        code=code,
    )
    return LocalExecutable(executable, program.interface, program.signature, program.keepalive)


class HostsLoader:
    """Loader of a program on its hosts, also on workers that replace lost ones.

    It has the split program instead of the module: a loss changes workers, and not the devices of slices.
    """

    def __init__(self, controller: HostSession, program: Scheduled) -> None:
        self._controller = controller
        self._plan = program.plan
        self._interface = program.interface
        self._signature = program.signature
        self._bound = _bound(program)
        self._context: ir.Context | None = program.module.context
        self._split: dict[tuple[Any, ...], SplitProgram] = {}

    def load(self, bindings: Mapping[str, Binding]) -> HostsExecutable:
        """Returns the executable on the devices of slices; see `load_program`."""
        return HostsExecutable(
            self._controller,
            self.load_hosted(bindings),
            self._plan,
            self._interface,
            self._signature,
            functools.partial(relocate, self._controller, functools.partial(_load_hosted, self._controller)),
            self._load_again,
        )

    def load_hosted(self, bindings: Mapping[str, Binding]) -> HostedProgram:
        """Returns the program on the devices of slices."""
        places = {name: _place(binding) for name, binding in bindings.items()}
        bound = msgspec.structs.replace(self._bound, slices=places)
        try:
            loaded = self._controller.load(bound, functools.partial(self._split_once, bound))
        except SplitError as error:
            raise ProgramError(str(error)) from None
        # Not needed again, as long as no slice gets other devices.
        self._context = None
        owners = {name: place.owners for name, place in places.items()}
        for observer in self._controller.pool.observers:
            observer.load(loaded, self._plan, owners)
        return loaded

    def _load_again(self) -> HostsExecutable:
        return self.load(bind_slices(self._interface, self._plan))

    def _split_once(self, bound: BoundProgram, ahead: int | str, *, multi_host: bool) -> SplitProgram:
        key = (*bound.slices.items(), ahead, multi_host)
        if key not in self._split:
            context = self._context or make_context()
            self._split = {key: split(bound, self._plan, context, ahead, multi_host=multi_host)}
        return self._split[key]


def _load_hosted(
    controller: HostSession, program: Scheduled, bindings: Mapping[str, Binding]
) -> HostedProgram:
    return HostsLoader(controller, program).load_hosted(bindings)


@functools.cache
def _warn_of_unchecked_values() -> None:
    """Warns once that hosts do not check values for NaNs and infinities."""
    warn(
        "jax_debug_nans and jax_debug_infs check no value on hosts; to find the operation, run the program "
        "in one process, on devices of pw.connect(cpu_devices=...)"
    )


def relocate_array(cluster: HostSession, array: Array, where: Location) -> None:
    """Brings an array to a location, from hosts to hosts, or through this process if replicas share it.

    Raises:
      HostError: a host was lost.
    """
    if relocate(cluster, functools.partial(_load_hosted, cluster), [(array, array, where)]):
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


def _bound(program: Scheduled) -> BoundProgram:
    """Returns the program as it is sent to hosts, without the devices of its slices."""
    stored = program.stored
    return BoundProgram(
        program.plan.name,
        module_for_hosts(program),
        {},
        {} if stored is None else dict(stored.computations),
        {} if stored is None else stored.plain_constants(),
        tuple(program.interface.argument_paths),
        tuple(bool(aval.weak_type) for aval in program.interface.out_avals),
    )

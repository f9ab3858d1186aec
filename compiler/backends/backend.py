"""Loading of programs on a backend: the devices of this process, or of workers on hosts."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from pathways.compiler.backends.executable import ProgramExecutable, Scheduled
from pathways.compiler.backends.hosts_executable import HostsExecutable
from pathways.compiler.backends.local_executable import LocalExecutable
from pathways.compiler.backends.prints import module_for_hosts
from pathways.compiler.backends.served_executable import load_proxied
from pathways.compiler.frontend.user_code import warn
from pathways.runtime.clusters.connect import controller
from pathways.runtime.hosts.client.program_loader import ProgramLoader
from pathways.runtime.hosts.protocol.programs import BoundProgram
from pathways.runtime.local.devices import devices_of_cluster
from pathways.runtime.local.load import load
from pathways.runtime.resources.manager import Binding
from pathways.runtime.traces.file_trace import start_from_environment
from pathways.runtime.xla import pjrt


def is_served() -> bool:
    """Returns whether a server has the devices of the cluster."""
    return controller() is None and pjrt.is_proxied(devices_of_cluster()[0])


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
            _warn_of_unchecked_values("on hosts")
        loader = ProgramLoader(hosts, _bound(program), program.plan, program.module.context)
        return HostsExecutable(loader, bindings, program.interface, program.signature)
    start_from_environment()
    if is_served():
        if pjrt.checks_values():
            _warn_of_unchecked_values("of programs behind pw-proxy")
        return load_proxied(program, bindings)
    executable = load(
        program.plan,
        bindings,
        result_avals=program.interface.out_avals,
        callbacks=program.callbacks,
        argument_names=program.interface.argument_paths,
        code=code,
    )
    return LocalExecutable(executable, program.interface, program.signature, program.keepalive)


@functools.cache
def _warn_of_unchecked_values(place: str) -> None:
    """Warns once for a place that JAX's checks for NaNs and infinities are not made there."""
    warn(
        f"jax_debug_nans and jax_debug_infs check no value {place}; to find the operation, run the program "
        "in one process, on devices of pw.connect(cpu_devices=...)"
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

"""Program of one signature in a process behind `pw-proxy`, whose server compiles and runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import override

import jax

from pathways.compiler.backends.executable import Scheduled
from pathways.compiler.backends.local_executable import LocalExecutable
from pathways.compiler.frontend.arguments import Signature
from pathways.compiler.frontend.trees import keys_of
from pathways.compiler.lower.bundles import packed
from pathways.compiler.lower.phases import ProgramError
from pathways.compiler.lower.python_calls import python_call_of
from pathways.runtime.bundle.manifest import BundleError
from pathways.runtime.local.memory import MemoryAnalysis
from pathways.runtime.local.proxied_load import REMEDY, ProxiedExecutable, load_by_server
from pathways.runtime.plan.plan import Plan
from pathways.runtime.resources.manager import Binding
from pathways.runtime.traces.proxied_traces import trace_proxied


class ServedExecutable(LocalExecutable):
    """Program of one signature on the devices of a server.

    Arguments and results are `jax.Array`s of the server, as `jax.jit` takes and returns there. Only the
    questions about compiled code differ from a `LocalExecutable`: they go to the server.

    Args:
      loaded: the program at the server. Its plan may have the arguments and results alone.
      program: the program.
    """

    loaded: ProxiedExecutable

    def __init__(self, loaded: ProxiedExecutable, program: Scheduled) -> None:
        super().__init__(loaded, program.interface, program.signature, program.keepalive)
        self.plan = program.plan

    @override
    def memory_analysis(self) -> MemoryAnalysis:
        return self.loaded.memory_analysis()

    @override
    def flops(self, computation: str, slice: str) -> float:
        return self.loaded.flops(computation)

    @override
    def device_text(self) -> str:
        return self.loaded.device_text()


def load_proxied(
    program: Scheduled,
    bindings: Mapping[str, Binding],
    ports: Plan | None = None,
    plans: Mapping[str, Plan] | None = None,
    bundle: bytes | None = None,
) -> ServedExecutable:
    """Has the server of this process's devices compile a program.

    Args:
      program: the program; its plan may be the plan of a sub-program.
      bindings: the devices of each of its slices.
      ports: its arguments and results, as a plan; by default its plan.
      plans: the plans of its sub-programs by name, if it has any.
      bundle: the program as a bundle without code, if it is there already.

    Raises:
      ProgramError: a server cannot run it; says why.
      JaxRuntimeError: the server or XLA rejects it.
    """
    ports = ports or program.plan
    if bundle is None:
        bundle = _bundle_of(program, ports.name)
    plans = plans or {"": ports}
    executable = load_by_server(ports, plans, bundle, bindings, program.interface.out_avals)
    trace_proxied(executable)
    return ServedExecutable(executable, program)


def _bundle_of(program: Scheduled, name: str) -> bytes:
    """Returns a program as a bundle.

    Raises:
      ProgramError: it calls back into Python, or the format cannot hold it.
    """
    for computation in program.plan.computations.values():
        if computation.callbacks:
            call = python_call_of(program.module, computation.name)
            raise ProgramError(f"program '{name}' calls back into Python, {call}, a server cannot; {REMEDY}")
    # The server gets arrays one by one, and needs no structures, which may be of any registered nodes.
    count = len(program.interface.in_avals)
    in_tree = jax.tree.structure(((0,) * count, {}))
    out_tree = jax.tree.structure((0,) * len(program.interface.out_avals))
    interface = dataclasses.replace(
        program.interface,
        # A leaf inside of one argument might have the name of another argument.
        argument_paths=tuple(f"args[{n}]" for n in range(count)),
        out_tree=out_tree,
        out_keys=keys_of(out_tree),
    )
    signature = Signature(in_tree, keys_of(in_tree), interface.in_avals, (), None)
    try:
        return packed(program.module, name, interface, signature)
    except BundleError as error:
        raise ProgramError(f"program '{name}' cannot be sent to a server: {error}") from None

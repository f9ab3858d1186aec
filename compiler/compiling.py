"""Compiles a scheduled program for the devices of its slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pathways.compiler.arguments import Signature
from pathways.compiler.call import Call
from pathways.compiler.interface import Interface
from pathways.runtime.local.devices import bind
from pathways.runtime.local.load import load
from pathways.runtime.plan.plan import Plan
from pathways.runtime.resources.manager import Binding


def bind_slices(interface: Interface, program: str) -> dict[str, Binding]:
    """The devices of each slice of a program, by the name of the slice in its module.

    Raises:
      ResourceError: there are too few devices; says how many there are and what is in the way.
    """
    bindings = bind(interface.slices.values(), program=program)
    return {name: bindings[virtual] for name, virtual in interface.slices.items()}


def compile_plan(
    plan: Plan,
    bindings: Mapping[str, Binding],
    interface: Interface,
    signature: Signature,
    *,
    callbacks: Sequence[Any] = (),
    keepalive: Sequence[Any] = (),
    code: Mapping[tuple[str, str], bytes | memoryview] | None = None,
) -> Call:
    """Compiles every computation of a program and generates its launch path.

    Args:
      plan: the program.
      bindings: the devices of each of its slices.
      interface: what it takes, returns and runs on.
      signature: what its arguments have to be.
      callbacks: host callbacks that the computations refer to by position.
      keepalive: what must live as long as the executables.
      code: what need not be compiled, by the names of computation and slice.

    Raises:
      ResourceError: the devices have too little memory; says what each slice takes.
      CompileError: XLA refuses a computation; names it.
    """
    executable = load(
        plan,
        bindings,
        result_avals=interface.out_avals,
        callbacks=callbacks,
        argument_names=interface.argument_paths,
        code=code,
    )
    return Call(executable, interface, signature, keepalive)

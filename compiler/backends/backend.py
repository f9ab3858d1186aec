"""Where programs run: what compiles a scheduled program for the devices of its slices, and calls it there."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxlib.mlir import ir

from pathways.compiler.backends.executable import ProgramExecutable
from pathways.compiler.frontend.arguments import Signature
from pathways.compiler.frontend.interface import Interface
from pathways.runtime.local.devices import bind
from pathways.runtime.plan.plan import Plan
from pathways.runtime.plan.stored import Stored
from pathways.runtime.resources.manager import Binding


@dataclasses.dataclass(frozen=True)
class Scheduled:
    """A program that is ready to be compiled.

    Attributes:
      module: the program in scheduled form, which stays as it is.
      plan: the same as a plan.
      interface: what it takes, returns and runs on.
      signature: what its arguments have to be.
      callbacks: host callbacks that the computations refer to by position.
      keepalive: what must live as long as the executables.
      stored: computations and constants that the module only declares.
    """

    module: ir.Module
    plan: Plan
    interface: Interface
    signature: Signature
    callbacks: Sequence[Any] = ()
    keepalive: Sequence[Any] = ()
    stored: Stored | None = None

    def bind(self) -> dict[str, Binding]:
        """The devices of each of its slices, by the name of the slice in its module.

        Raises:
          ResourceError: there are too few devices; says how many there are and what is in the way.
        """
        slices = self.interface.slices
        bindings = bind(slices.values(), program=self.plan.name)
        return {name: bindings[virtual] for name, virtual in slices.items()}


class Backend(abc.ABC):
    """The devices of a cluster, whoever owns them.

    What it loads is a `ProgramExecutable`, which transfers arguments to its devices. Results are fetched
    and freed as arrays: they are `jax.Array`s of this process, or `pathways.Array`s.
    """

    @abc.abstractmethod
    def load(
        self,
        program: Scheduled,
        bindings: Mapping[str, Binding],
        code: Mapping[tuple[str, str], bytes | memoryview] | None = None,
    ) -> ProgramExecutable:
        """Compiles every computation of a program and makes what runs them.

        Args:
          program: the program.
          bindings: the devices of each of its slices.
          code: what need not be compiled, by the names of computation and slice.

        Raises:
          ResourceError: the devices have too little memory; says what each slice takes.
          CompileError: XLA refuses a computation; names it.
          ProgramError: it cannot run there; says why.
          HostError: a host is gone, or cannot compile its part.
        """

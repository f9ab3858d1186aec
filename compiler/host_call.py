"""The path of a call of a program on hosts: send what is not there, tell each host, hand out handles."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from pathways.compiler import jax_internals
from pathways.compiler.arguments import Signature
from pathways.compiler.call import UNLIKE
from pathways.compiler.interface import Interface
from pathways.compiler.signed import SignedCall, describe
from pathways.runtime.hosts.array import Array
from pathways.runtime.hosts.controller import Controller, HostedProgram, HostPort
from pathways.runtime.local.load import Executable
from pathways.runtime.plan.plan import Plan

ARRAYS = (Array, jax.Array)
"""What can be deleted."""


class HostCall(SignedCall):
    """One signature of a program on its hosts; the counterpart of `call.Call`.

    Args:
      controller: the controller of the hosts.
      program: the program as it is loaded there.
      plan: the whole of it.
      interface: what it takes, returns and runs on.
      signature: what its arguments have to be.

    Attributes:
      plan: the whole program.
    """

    def __init__(
        self,
        controller: Controller,
        program: HostedProgram,
        plan: Plan,
        interface: Interface,
        signature: Signature,
    ) -> None:
        super().__init__(plan.name, interface, signature)
        self.plan = plan
        self._context = signature.context
        self._controller = controller
        self._program = program
        count = len(signature.avals)
        self._ports: list[list[HostPort]] = [[] for _ in range(count)]
        for ports in program.inputs.values():
            for port in ports:
                self._ports[port.number].append(port)
        self._donated = [
            n for n, a in enumerate(a for a in plan.arguments if a.constant is None) if a.donated
        ]
        self._alive = list(interface.slices.values())
        weakref.finalize(self, controller.unload, program).atexit = False

    @property
    def context(self) -> Any:
        """The JAX settings it was traced under; once a host is gone none, so that no call is this one."""
        return self._context if self._controller.is_whole() else None

    @property
    def executable(self) -> Executable:
        """What XLA made of the program is on the hosts.

        Raises:
          RuntimeError: always.
        """
        raise RuntimeError(
            f"program '{self.name}' runs on hosts, which keep what XLA made of it: its device text, memory "
            "analysis and flops can be seen where it is compiled for devices of this process"
        )

    @property
    def argument_shardings(self) -> list[Any]:
        """Hosts have no shardings of this process."""
        return [None] * len(self._ports)

    @property
    def result_shardings(self) -> list[Any]:
        """Hosts have no shardings of this process."""
        return [None] * len(self.interface.out_avals)

    def go_if_like_last(self, leaves: list[Any]) -> Any:
        """There is no shorter path."""
        return UNLIKE

    def bring(self, leaves: list[Any]) -> list[Array] | None:
        """Brings arguments to their hosts; None when they are of another signature."""
        for n, leaf in enumerate(leaves):
            try:
                if not self._signature.takes(n, jax_internals.abstractify(leaf)):
                    return None
            except (TypeError, ValueError):
                return None
        self._check_donated(leaves)
        brought = [self._brought(n, leaf) for n, leaf in enumerate(leaves)]
        for n in self._donated:
            # The program has a copy of it, which ends with the call.
            if leaves[n] is not brought[n] and isinstance(leaves[n], ARRAYS):
                leaves[n].delete()
        return brought

    def place(self, leaves: list[Any]) -> list[Any]:
        """Puts the first arguments where calls want them."""
        for n, leaf in enumerate(leaves):
            aval = jax_internals.abstractify(leaf)
            if not self._signature.takes(n, aval):
                raise self.mismatch(n, aval)
        return [self._brought(n, leaf) for n, leaf in enumerate(leaves)]

    def go(self, leaves: Sequence[Array]) -> Any:
        """Runs the plan on arguments that are in place."""
        arguments = {
            host: [self._number(leaves[port.number], port) for port in ports]
            for host, ports in self._program.inputs.items()
        }
        step, numbers = self._controller.run(self._program, arguments)
        for n in self._donated:
            leaves[n].delete()
        copies: list[dict[Any, int]] = [{} for _ in self.interface.out_avals]
        for host, ports in self._program.outputs.items():
            for port, number in zip(ports, numbers[host], strict=True):
                copies[port.number][host, port.placement] = number
        return self.interface.out_tree.unflatten(
            Array(self._controller, aval, where, step)
            for aval, where in zip(self.interface.out_avals, copies, strict=True)
        )

    def _number(self, array: Array, port: HostPort) -> int:
        number = array.number_on(port.host, port.placement)
        assert number is not None
        return number

    def _brought(self, n: int, leaf: Any) -> Array:
        """An argument on the hosts that read it; what is there already is not sent."""
        aval = self._signature.avals[n]
        if isinstance(leaf, ARRAYS) and leaf.is_deleted():
            raise RuntimeError(
                f"program '{self.name}': argument {self.paths[n]} has been deleted, with type "
                f"{describe(aval)}; it was donated to an earlier call"
            )
        is_there = isinstance(leaf, Array) and leaf.is_of(self._controller)
        array = leaf if is_there else Array(self._controller, aval, {}, None)
        missing = [p for p in self._ports[n] if array.number_on(p.host, p.placement) is None]
        if missing:
            value = _value(leaf, aval)
            for port in missing:
                array.add_copy(port.host, port.placement, self._controller.put(value, port))
        return array

    def _check_donated(self, leaves: Sequence[Any]) -> None:
        donated = {id(leaves[n]) for n in self._donated if isinstance(leaves[n], ARRAYS)}
        seen: dict[int, int] = {}
        for n, leaf in enumerate(leaves):
            first = seen.setdefault(id(leaf), n)
            if first != n and id(leaf) in donated:
                raise ValueError(
                    f"program '{self.name}': arguments {self.paths[first]} and {self.paths[n]} are the "
                    "same array, and one of them is donated; pass a copy"
                )


def _value(leaf: Any, aval: Any) -> np.ndarray[Any, Any]:
    """An argument as the host gets it; of typed PRNG keys their data."""
    if isinstance(leaf, Array):
        return leaf.fetch()
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
        return np.asarray(jax_internals.key_data(leaf))
    return np.asarray(leaf, aval.dtype)

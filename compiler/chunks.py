"""Programs with loops that end depending on values: their sub-programs, and the driver that issues them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any, override

import jax
import numpy as np

from pathways.compiler.backends.executable import CACHE_MISS, ProgramExecutable
from pathways.compiler.frontend.arguments import Interface, Signature
from pathways.compiler.frontend.trees import keys_of
from pathways.runtime.control.records.errors import failed
from pathways.runtime.local.load import Executable
from pathways.runtime.local.memory import MemoryAnalysis, analyze_sub_programs
from pathways.runtime.local.slots import aval_of
from pathways.runtime.plan.sub_programs import SubProgramCall, SubProgramCalls
from pathways.runtime.xla.compile_cache import Request


def subprogram_ports(
    calls: SubProgramCalls, interface: Interface, context: Any
) -> dict[str, tuple[Interface, Signature]]:
    """Returns the interface and signature of each sub-program, as a caller sees it.

    Args:
      calls: the calls of sub-programs.
      interface: the arguments, results and slices of the whole.
      context: the JAX settings that it was traced under.
    """
    avals: dict[int, Any] = dict(enumerate(interface.in_avals))
    paths = dict(enumerate(interface.argument_paths))
    ports = {}
    for call in calls.calls:
        results = tuple(map(aval_of, call.types, call.kinds))
        if call is calls.calls[-1]:
            results = interface.out_avals
        avals.update(zip(call.results, results, strict=True))
        out_tree = jax.tree.structure((0,) * len(call.results))
        inputs = tuple(avals[n] for n in call.operands)
        call_interface = dataclasses.replace(
            interface,
            argument_paths=tuple(paths.get(n, f"value {n}") for n in call.operands),
            in_avals=inputs,
            out_avals=results,
            out_tree=out_tree,
            out_keys=keys_of(out_tree),
        )
        in_tree = jax.tree.structure(((0,) * len(inputs), {}))
        # Values that it gets from others are in the memory that it expects them in.
        signature = Signature(in_tree, keys_of(in_tree), inputs, (), context, strict=False, kinds=None)
        ports[call.sub_program] = call_interface, signature
    return ports


class ChunkedExecutable(ProgramExecutable):
    """Executable of a program of sub-programs: runs some once, and chunks of a loop's iterations to its end.

    After each chunk it waits for the boolean that ends the loop; the call returns when the last sub-program
    is issued. Ctrl-C stops it between chunks.

    Args:
      calls: the calls of sub-programs, and the values that they pass on.
      subprograms: the executable of each sub-program.
      interface: the arguments, results and slices of the whole.
    """

    def __init__(
        self,
        calls: SubProgramCalls,
        subprograms: Mapping[str, ProgramExecutable],
        interface: Interface,
        signature: Signature,
        name: str,
    ) -> None:
        self._subprograms = subprograms
        self._chunk = subprograms[calls.repeated]
        super().__init__(self._chunk.plan, interface, signature)
        self.name = name
        self._donated = calls.donated
        self._program_calls = calls
        self._calls = [(subprograms[call.sub_program], call) for call in calls.calls]
        self._context = signature.context
        self._readers = [
            next(((subprograms[name], n) for name, n in calls.consumers(number)), None)
            for number in range(len(interface.in_avals))
        ]
        self._in_place: tuple[list[Any], list[Any]] | None = None
        """Types and shardings of the arguments of one call that had to move none of them."""

    @property
    def context(self) -> Any:
        """The JAX settings it was traced under; None once its devices were disconnected."""
        return None if any(subprogram.context is None for subprogram, _ in self._calls) else self._context

    @property
    @override
    def is_lost(self) -> bool:
        return any(subprogram.is_lost for subprogram in self._subprograms.values())

    @property
    @override
    def is_restorable(self) -> bool:
        return all(subprogram.is_restorable for subprogram in self._subprograms.values())

    @override
    def load_again(self) -> ChunkedExecutable:
        subprograms = {
            name: subprogram.load_again() if subprogram.is_lost else subprogram
            for name, subprogram in self._subprograms.items()
        }
        return ChunkedExecutable(self._program_calls, subprograms, self.interface, self._signature, self.name)

    @property
    def loaded(self) -> Executable:  # type: ignore[override]
        """The loaded executable of a chunk."""
        return self._chunk.loaded

    @property
    def argument_shardings(self) -> list[Any]:
        """The placement of each argument on the first of its slices; None for one that nothing reads."""
        return [
            None if reader is None else reader[0].argument_shardings[reader[1]] for reader in self._readers
        ]

    @property
    def result_shardings(self) -> list[Any]:
        """The placement of each result on the first of its slices."""
        return self._calls[-1][0].result_shardings

    @override
    def result_types(self) -> list[Any]:
        return self._calls[-1][0].result_types()

    @override
    def argument_types(self, numbers: Sequence[int]) -> list[Any]:
        types = super().argument_types(numbers)
        for n, number in enumerate(numbers):
            reader = self._readers[number]
            if reader is not None:
                (types[n],) = reader[0].argument_types([reader[1]])
        return types

    def memory_analysis(self) -> MemoryAnalysis:
        """Returns the peak memory of a call on each slice, of the largest sub-program and waiting values."""
        plans = {call.sub_program: subprogram.plan for subprogram, call in self._calls}
        analyses = {call.sub_program: subprogram.memory_analysis() for subprogram, call in self._calls}
        return analyze_sub_programs(self._program_calls, plans, analyses)

    def flops(self, computation: str, slice: str) -> float:
        """Returns the floating-point operations of one launch of a chunk on a slice, on all its devices."""
        return self._chunk.flops(computation, slice)

    def requests(self) -> Mapping[str, Sequence[Request]]:
        """Returns the compile requests of each sub-program."""
        return {
            call.sub_program: requests
            for subprogram, call in self._calls
            for requests in subprogram.requests().values()
        }

    def device_text(self) -> str:
        """Returns XLA's optimized module of each computation on each slice, of all sub-programs."""
        return "\n".join(subprogram.device_text() for subprogram, _ in self._calls)

    def transfer_arguments(self, leaves: list[Any]) -> list[Any] | None:
        """Transfers arguments to their slices; None when they are of another signature."""
        if not self.accepts(range(len(leaves)), leaves):
            return None
        self._check_donated(leaves)
        undonated = {n: leaf for n, leaf in enumerate(leaves) if n not in self._donated}
        # A sub-program transfers the arguments that it consumes itself: only then it knows their owners.
        placed = self.put_arguments(undonated, copy=False)
        if all(placed[n] is leaf for n, leaf in undonated.items()):
            self._in_place = _types_and_shardings(leaves)
        return [placed.get(n, leaf) for n, leaf in enumerate(leaves)]

    @override
    def put_arguments(self, leaves: Mapping[int, Any], *, copy: bool) -> dict[int, Any]:
        if copy:
            # The errors of sub-programs would name them instead of the program.
            for n, leaf in leaves.items():
                self.check(n, leaf)
        placed = dict(leaves)
        for subprogram, _ in self._calls:
            read = [
                (n, reader[1]) for n in leaves if (reader := self._readers[n]) and reader[0] is subprogram
            ]
            values = subprogram.put_arguments({k: leaves[n] for n, k in read}, copy=copy)
            placed.update((n, values[k]) for n, k in read)
        return placed

    def try_fast_path(self, leaves: list[Any]) -> Any:
        """Runs all sub-programs if all arguments are arrays like the arguments of an earlier call, else
        returns `CACHE_MISS`."""
        if self._in_place is None or self.is_lost or _types_and_shardings(leaves) != self._in_place:
            return CACHE_MISS
        self._check_donated(leaves)
        return self.execute(leaves)

    def execute(self, leaves: list[Any]) -> Any:
        """Runs all sub-programs on arguments that are on their slices."""
        values: dict[int, Any] = dict(enumerate(leaves))
        # Another reference in this frame would keep arrays alive after their last reader.
        del leaves
        for subprogram, call in self._calls:
            operands = [values[n] for n in call.operands]
            results = _run(subprogram, operands)
            if call.until is not None:
                # Results replace the first operands; the others are the same in every iteration.
                shared = operands[len(results) :]
                del operands
                began = time.monotonic()
                while not bool(np.asarray(results[call.until])):
                    self._check_deadline(subprogram, call, time.monotonic() - began)
                    results = _run(subprogram, [*results, *shared])
            values.update(zip(call.results, results, strict=True))
            for n in call.last:
                del values[n]
        return self.interface.out_tree.unflatten(results)

    def _check_deadline(self, subprogram: ProgramExecutable, call: SubProgramCall, seconds: float) -> None:
        """Raises an error if a loop has run for longer than a step may."""
        deadline = subprogram.step_deadline
        if deadline is not None and seconds >= deadline:
            raise failed(
                f"loop @{call.sub_program} has run for {seconds:.0f} seconds, and step_deadline is "
                f"{deadline:g}: it was ended after a chunk"
            ).error(f"program '{self.name}'")


def _types_and_shardings(leaves: Sequence[Any]) -> tuple[list[Any], list[Any]] | None:
    """Returns the key by which arguments of two calls are compared; None if one is not an array."""
    try:
        return [leaf.aval for leaf in leaves], [leaf.sharding for leaf in leaves]
    except AttributeError:
        return None


def _run(executable: ProgramExecutable, leaves: list[Any]) -> Sequence[Any]:
    """Calls a sub-program."""
    results = executable.try_fast_path(leaves)
    if results is CACHE_MISS:
        results = executable.execute(executable.transfer_or_raise(leaves, executable.tree))
    return results

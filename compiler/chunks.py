"""Programs with loops whose end depends on values: their parts, and what issues one after the other."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pathways.compiler.backends.executable import ProgramExecutable
from pathways.compiler.backends.local_executable import UNLIKE
from pathways.compiler.frontend.arguments import Signature
from pathways.compiler.frontend.interface import Interface
from pathways.compiler.frontend.trees import keys_of
from pathways.compiler.lower.phases import Forms
from pathways.compiler.stages import Lowered
from pathways.dialect import form_of
from pathways.dialect.operations.operation import parts_of, symbol_name
from pathways.dialect.syntax.bytecode import copy_of
from pathways.dialect.verification.forms import PARTS
from pathways.runtime.control.records.errors import failed
from pathways.runtime.local.load import Executable
from pathways.runtime.local.memory import MemoryAnalysis, analyze_sub_programs
from pathways.runtime.plan.plan import ArrayType
from pathways.runtime.plan.sub_programs import SubProgramCall, SubProgramCalls, calls_of
from pathways.runtime.xla.compile_cache import Request


def lowered(forms: Forms, interface: Interface, signature: Signature, **more: Any) -> Lowered:
    """A program in all its forms, whether it has parts or not; `more` is what `Lowered` gets besides."""
    kind = ChunkedLowered if form_of(forms.scheduled) == PARTS.name else Lowered
    return kind(forms, interface, signature, **more)


class ChunkedLowered(Lowered):
    """A program in parts, each in all forms of the IR; what is said of plans is said of a chunk.

    Args:
      forms: the whole.
      interface: what it takes, returns and runs on.
      signature: what its arguments have to be.
      more: what `Lowered` gets besides.
    """

    def __init__(self, forms: Forms, interface: Interface, signature: Signature, **more: Any) -> None:
        self._calls = calls_of(forms.scheduled)
        ports = part_ports(self._calls, interface, signature.context)
        self._parts: dict[str, Lowered] = {}
        for part in parts_of(forms.scheduled):
            name = symbol_name(part.operation.opview) or ""
            own = Forms(f"{forms.name}_{name}", copy_of(part), {}, ())
            self._parts[name] = Lowered(own, *ports[name], **more)
        chunk = self._parts[self._calls.repeated]
        super().__init__(forms, interface, signature, **more)
        self._interface = dataclasses.replace(interface, slices=chunk.slices)

    @property
    def args_info(self) -> Any:
        """`(args, kwargs)` with a `jax.stages.ArgInfo` for each: its type, and whether it is consumed."""
        donated = self._calls.donated
        return self._signature.tree.unflatten(
            jax.stages.ArgInfo(aval, n in donated) for n, aval in enumerate(self.in_avals)
        )

    def load(self, *, strict: bool) -> ProgramExecutable:
        """What `compile` does; returns what runs."""
        parts = {name: part.load(strict=False) for name, part in self._parts.items()}
        signature = dataclasses.replace(self._signature, strict=strict)
        return ChunkedExecutable(self._calls, parts, self._interface, signature, self.name)


def part_ports(
    calls: SubProgramCalls, interface: Interface, context: Any
) -> dict[str, tuple[Interface, Signature]]:
    """What each part takes and returns, as callers of programs are told.

    Args:
      calls: what runs the parts.
      interface: what the whole takes, returns and runs on.
      context: the JAX settings that it was traced under.
    """
    avals: dict[int, Any] = dict(enumerate(interface.in_avals))
    paths = dict(enumerate(interface.argument_paths))
    ports = {}
    for call in calls.calls:
        results = tuple(map(_aval, call.types))
        if call is calls.calls[-1]:
            results = interface.out_avals
        avals.update(zip(call.results, results, strict=True))
        out_tree = jax.tree.structure((0,) * len(call.results))
        inputs = tuple(avals[n] for n in call.operands)
        own = dataclasses.replace(
            interface,
            argument_paths=tuple(paths.get(n, f"value {n}") for n in call.operands),
            in_avals=inputs,
            out_avals=results,
            out_tree=out_tree,
            out_keys=keys_of(out_tree),
        )
        in_tree = jax.tree.structure(((0,) * len(inputs), {}))
        ports[call.sub_program] = own, Signature(in_tree, keys_of(in_tree), inputs, (), context, strict=False)
    return ports


def _aval(plain: ArrayType) -> jax.core.ShapedArray:
    return jax.core.ShapedArray(plain.shape, jax.numpy.dtype(plain.dtype))


class ChunkedExecutable(ProgramExecutable):
    """Runs the parts of a program: some once, and chunks of the turns of a loop until it has come to its end.

    After each chunk it waits for one number of it; the call returns when the last part is issued. Ctrl-C ends
    it between chunks.

    Args:
      calls: which parts it runs, and what they pass to each other.
      parts: what runs each of them.
      interface: what the whole takes, returns and runs on.
      signature: what its arguments have to be.
      name: the name of the program.
    """

    def __init__(
        self,
        calls: SubProgramCalls,
        parts: Mapping[str, ProgramExecutable],
        interface: Interface,
        signature: Signature,
        name: str,
    ) -> None:
        self._chunk = parts[calls.repeated]
        super().__init__(self._chunk.plan, interface, signature)
        self.name = name
        self._donated = calls.donated
        self._part_calls = calls
        self._calls = [(parts[call.sub_program], call) for call in calls.calls]
        self._context = signature.context
        self._takers = [
            next(((parts[part], n) for part, n in calls.consumers(number)), None)
            for number in range(len(interface.in_avals))
        ]
        self._in_place: tuple[list[Any], list[Any]] | None = None
        """Types and shardings of arguments of which none has to be moved, as one call had them."""

    @property
    def context(self) -> Any:
        """The JAX settings it was traced under; none once a host is gone, so that no call is this one."""
        return None if any(part.context is None for part, _ in self._calls) else self._context

    @property
    def loaded(self) -> Executable:  # type: ignore[override]
        """What XLA made of a chunk."""
        return self._chunk.loaded

    @property
    def argument_shardings(self) -> list[Any]:
        """Where each argument lives, on the first of its slices; None for one that nothing reads."""
        return [None if taker is None else taker[0].argument_shardings[taker[1]] for taker in self._takers]

    @property
    def result_shardings(self) -> list[Any]:
        """Where each result lives, on the first of its slices."""
        return self._calls[-1][0].result_shardings

    def result_types(self) -> list[Any]:
        """See `ProgramExecutable.result_types`."""
        return self._calls[-1][0].result_types()

    def argument_types(self, numbers: Sequence[int]) -> list[Any]:
        """See `ProgramExecutable.argument_types`."""
        types = super().argument_types(numbers)
        for n, number in enumerate(numbers):
            taker = self._takers[number]
            if taker is not None:
                (types[n],) = taker[0].argument_types([taker[1]])
        return types

    def memory_analysis(self) -> MemoryAnalysis:
        """The memory that one call takes on each slice: that of the part that takes most, with what waits."""
        plans = {call.sub_program: part.plan for part, call in self._calls}
        analyses = {call.sub_program: part.memory_analysis() for part, call in self._calls}
        return analyze_sub_programs(self._part_calls, plans, analyses)

    def flops(self, computation: str, slice: str) -> float:
        """The floating-point operations of one launch of a chunk on a slice, on all its devices."""
        return self._chunk.flops(computation, slice)

    def requests(self) -> Mapping[str, Sequence[Request]]:
        """What was compiled, by the part of the program that it is of."""
        return {
            call.sub_program: requests for part, call in self._calls for requests in part.requests().values()
        }

    def device_text(self) -> str:
        """XLA's optimized module of each computation on each slice, of all parts."""
        return "\n".join(part.device_text() for part, _ in self._calls)

    def transfer_in(self, leaves: list[Any]) -> list[Any] | None:
        """Transfers arguments to their slices; None when they are of another signature."""
        if not self.takes(range(len(leaves)), leaves):
            return None
        self._check_donated(leaves)
        kept = {n: leaf for n, leaf in enumerate(leaves) if n not in self._donated}
        # What a part consumes it brings itself: only it knows whose buffer that is then.
        placed = self.bring(kept)
        if all(placed[n] is leaf for n, leaf in kept.items()):
            self._in_place = _types_and_shardings(leaves)
        return [placed.get(n, leaf) for n, leaf in enumerate(leaves)]

    def place(self, leaves: Mapping[int, Any]) -> dict[int, Any]:
        """See `ProgramExecutable.place`."""
        for n, leaf in leaves.items():
            self.check(n, leaf)
        return self._by_parts(leaves, lambda part, own: part.place(own))

    def bring(self, leaves: Mapping[int, Any]) -> dict[int, Any]:
        """See `ProgramExecutable.bring`."""
        return self._by_parts(leaves, lambda part, own: part.bring(own))

    def _by_parts(
        self,
        leaves: Mapping[int, Any],
        put: Callable[[ProgramExecutable, dict[int, Any]], dict[int, Any]],
    ) -> dict[int, Any]:
        """Arguments that are put by the part that takes them; those that none takes stay as they are."""
        placed = dict(leaves)
        for part, _ in self._calls:
            taken = [(n, taker[1]) for n in leaves if (taker := self._takers[n]) and taker[0] is part]
            brought = put(part, {k: leaves[n] for n, k in taken})
            placed.update((n, brought[k]) for n, k in taken)
        return placed

    def execute_if_like_last(self, leaves: list[Any]) -> Any:
        """Runs all parts if all arguments are arrays like those of an earlier call, else returns `UNLIKE`."""
        if self._in_place is None or _types_and_shardings(leaves) != self._in_place:
            return UNLIKE
        self._check_donated(leaves)
        return self.execute(leaves)

    def execute(self, leaves: list[Any]) -> Any:
        """Runs all parts on arguments that are in place."""
        values: dict[int, Any] = dict(enumerate(leaves))
        del leaves
        for part, call in self._calls:
            operands = [values[n] for n in call.operands]
            made = _run(part, operands)
            if call.until is not None:
                shared = operands[len(made) :]
                del operands
                began = time.monotonic()
                while not bool(np.asarray(made[call.until])):
                    self._check_deadline(part, call, time.monotonic() - began)
                    made = _run(part, [*made, *shared])
            values.update(zip(call.results, made, strict=True))
            for n in call.last:
                del values[n]
        return self.interface.out_tree.unflatten(made)

    def _check_deadline(self, part: ProgramExecutable, call: SubProgramCall, seconds: float) -> None:
        """Ends a loop that has gone on for longer than a step may."""
        deadline = part.step_deadline
        if deadline is not None and seconds >= deadline:
            raise failed(
                f"loop @{call.sub_program} has gone on for {seconds:.0f} seconds, and step_deadline is "
                f"{deadline:g}: it was ended after a chunk"
            ).error(f"program '{self.name}'")


def _types_and_shardings(leaves: Sequence[Any]) -> tuple[list[Any], list[Any]] | None:
    """What says whether arguments are like others; None when one is no array."""
    try:
        return [leaf.aval for leaf in leaves], [leaf.sharding for leaf in leaves]
    except AttributeError:
        return None


def _run(executable: ProgramExecutable, leaves: list[Any]) -> Sequence[Any]:
    """Calls a part."""
    results = executable.execute_if_like_last(leaves)
    if results is UNLIKE:
        results = executable.execute(executable.transfer_in_or_fail(leaves, executable.tree))
    return results

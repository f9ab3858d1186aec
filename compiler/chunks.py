"""Programs with a loop whose end depends on values: three programs, and who issues one after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jax
import numpy as np

from pathways.compiler.backends.executable import ProgramExecutable
from pathways.compiler.backends.local_executable import UNLIKE
from pathways.compiler.frontend.arguments import Signature
from pathways.compiler.frontend.interface import Interface
from pathways.compiler.frontend.trees import keys_of
from pathways.compiler.lower.phases import Forms, ProgramError, run_phases
from pathways.compiler.lower.structures import is_key
from pathways.compiler.stages import Lowered
from pathways.passes.loops.split_chunks import Chunks, Handed, ProgramPart
from pathways.passes.manager.base import main_function
from pathways.passes.pipeline import Options
from pathways.runtime.bundle.manifest import BundleError
from pathways.runtime.local.memory import MemoryAnalysis
from pathways.runtime.plan.lower import array_type


class ChunkedLowered(Lowered):
    """A program in three parts, each in all forms of the IR; what is said of plans is said of a chunk.

    Args:
      forms: the whole, up to the form `sharded`.
      chunks: its parts in that form; they are scheduled here.
      interface: what the whole takes, returns and runs on.
      signature: what its arguments have to be.
      options: of the compiler.
      more: what `Lowered` gets besides.
    """

    def __init__(
        self,
        forms: Forms,
        chunks: Chunks,
        interface: Interface,
        signature: Signature,
        options: Options,
        **more: Any,
    ) -> None:
        if any(map(is_key, (*interface.in_avals, *interface.out_avals))):
            raise ProgramError(
                f"program '{forms.name}' has a loop whose end depends on values, and takes or returns typed "
                "PRNG keys: take jax.random.key_data of them, and make keys of it in the program"
            )
        self._chunks = chunks
        parts = {"before": chunks.before, "turns": chunks.turns, "after": chunks.after}
        self._parts = {
            which: _lowered(part, f"{forms.name}_{which}", interface, signature.context, options, more)
            for which, part in parts.items()
        }
        turns = self._parts["turns"]._forms
        super().__init__(
            Forms(forms.name, turns.scheduled, forms.bytecode, (*forms.remarks, *turns.remarks)),
            dataclasses.replace(interface, slices=self._parts["turns"].slices),
            signature,
            **more,
        )

    @property
    def args_info(self) -> Any:
        """`(args, kwargs)` with a `jax.stages.ArgInfo` for each; none is consumed."""
        return self._signature.tree.unflatten(jax.stages.ArgInfo(aval, False) for aval in self.in_avals)

    def as_text(self, phase: str = "scheduled", *, pretty: bool = False) -> str:
        """The module after a phase, as MLIR text; of the scheduled form all three, one after the other."""
        if phase != "scheduled":
            return super().as_text(phase, pretty=pretty)
        return "\n// -----\n".join(part.as_text(phase, pretty=pretty) for part in self._parts.values())

    def load(self, *, strict: bool) -> ProgramExecutable:
        """What `compile` does; returns what runs."""
        before, turns, after = (part.load(strict=False) for part in self._parts.values())
        signature = dataclasses.replace(self._signature, strict=strict)
        return ChunkedExecutable(self._chunks, (before, turns, after), self._interface, signature, self.name)

    def _save(self, path: Any, requests: Any) -> NoReturn:
        raise BundleError(
            f"program '{self.name}' has a loop whose end depends on values, which a bundle cannot hold: give "
            "it a bound that is a Python number, as of jax.lax.fori_loop, or save what a turn does"
        )


def _lowered(
    part: ProgramPart,
    name: str,
    interface: Interface,
    context: Any,
    options: Options,
    more: Mapping[str, Any],
) -> Lowered:
    """A part on slices of the whole."""
    types = main_function(part.module).type
    avals = [
        tuple(_aval(type_) for type_ in list(some)[:count])
        for some, count in ((types.inputs, len(part.inputs)), (types.results, None))
    ]
    forms = run_phases(part.module, name, options)
    out_tree = jax.tree.structure((0,) * len(avals[1]))
    own = dataclasses.replace(
        interface,
        argument_paths=tuple(f"value {n}" for n in range(len(part.inputs))),
        in_avals=avals[0],
        out_avals=avals[1],
        out_tree=out_tree,
        out_keys=keys_of(out_tree),
    )
    in_tree = jax.tree.structure(((0,) * len(part.inputs), {}))
    signature = Signature(in_tree, keys_of(in_tree), avals[0], (), context, strict=False)
    return Lowered(forms, own, signature, **more)


def _aval(type_: Any) -> jax.core.ShapedArray:
    plain = array_type(type_)
    return jax.core.ShapedArray(plain.shape, jax.numpy.dtype(plain.dtype))


class ChunkedExecutable(ProgramExecutable):
    """Issues what comes before the loop, chunks of its turns while there is one more, and what comes after.

    After each chunk it waits for one number of it; the call returns when the last part is issued. Ctrl-C ends
    it between chunks.

    Args:
      chunks: what the parts pass to each other.
      parts: what runs them.
      interface: what the whole takes, returns and runs on.
      signature: what its arguments have to be.
      name: the name of the program.
    """

    def __init__(
        self,
        chunks: Chunks,
        parts: tuple[ProgramExecutable, ProgramExecutable, ProgramExecutable],
        interface: Interface,
        signature: Signature,
        name: str,
    ) -> None:
        super().__init__(parts[1].plan, interface, signature)
        self.name = name
        self._donated = frozenset()
        self._chunks = chunks
        self._before, self._turns, self._after = parts
        self._context = signature.context
        self._takers: dict[int, tuple[ProgramExecutable, int]] = {}
        for part, executable in zip(
            (chunks.after, chunks.before, chunks.turns), (parts[2], *parts[:2]), strict=True
        ):
            for n, port in enumerate(part.inputs):
                if port.operation is None:
                    self._takers[port.number] = executable, n

    @property
    def context(self) -> Any:
        """The JAX settings it was traced under; none once a host is gone, so that no call is this one."""
        parts = self._before, self._turns, self._after
        return None if any(part.context is None for part in parts) else self._context

    @property
    def argument_shardings(self) -> list[Any]:
        """Where each argument lives, on the first of its slices; None for one that nothing reads."""
        takers = map(self._takers.get, range(len(self.paths)))
        return [None if taker is None else taker[0].argument_shardings[taker[1]] for taker in takers]

    @property
    def result_shardings(self) -> list[Any]:
        """Where each result lives, on the first of its slices."""
        return self._after.result_shardings

    def memory_analysis(self) -> MemoryAnalysis:
        """The memory that one chunk takes on each slice."""
        return self._turns.memory_analysis()

    def flops(self, computation: str, slice: str) -> float:
        """The floating-point operations of one launch of a chunk on a slice, on all its devices."""
        return self._turns.flops(computation, slice)

    def device_text(self) -> str:
        """XLA's optimized module of each computation on each slice, of all parts."""
        return "\n".join(part.device_text() for part in (self._before, self._turns, self._after))

    def transfer_in(self, leaves: list[Any]) -> list[Any] | None:
        """Transfers arguments to their slices; None when they are of another signature."""
        if not self.takes(range(len(leaves)), leaves):
            return None
        placed = self._placed(dict(enumerate(leaves)))
        return [placed.get(n, leaf) for n, leaf in enumerate(leaves)]

    def place(self, leaves: Mapping[int, Any]) -> dict[int, Any]:
        """Puts some arguments, by their numbers, where calls want them; what is there stays as it is."""
        for n, leaf in leaves.items():
            self.check(n, leaf)
        placed = self._placed(leaves)
        return {n: placed.get(n, leaf) for n, leaf in leaves.items()}

    def _placed(self, leaves: Mapping[int, Any]) -> dict[int, Any]:
        placed: dict[int, Any] = {}
        for executable in (self._before, self._turns, self._after):
            numbers = {
                taker[1]: n
                for n in leaves
                if (taker := self._takers.get(n)) is not None and taker[0] is executable
            }
            for k, array in executable.place({k: leaves[n] for k, n in numbers.items()}).items():
                placed[numbers[k]] = array
        return placed

    def execute_if_like_last(self, leaves: list[Any]) -> Any:
        """Tells that arguments have to be looked at: a chunk costs more than that."""
        return UNLIKE

    def execute(self, leaves: list[Any]) -> Any:
        """Runs all parts on arguments that are in place."""
        chunks = self._chunks
        values: dict[Handed, Any] = {Handed(None, n): leaf for n, leaf in enumerate(leaves)}
        started = list(_run(self._before, [values[port] for port in chunks.before.inputs]))
        count = len(chunks.turns.outputs)
        carried, handed = started[:count], started[count:]
        values.update(zip(chunks.before.outputs[count:], handed, strict=True))
        others = [values[port] for port in chunks.turns.inputs[count:]]
        while bool(np.asarray(carried[chunks.goes_on])):
            carried = list(_run(self._turns, [*carried, *others]))
        values.update(zip(chunks.turns.outputs, carried, strict=True))
        results = _run(self._after, [values[port] for port in chunks.after.inputs])
        return self.interface.out_tree.unflatten(results)


def _run(executable: ProgramExecutable, leaves: list[Any]) -> Sequence[Any]:
    """Calls a part."""
    results = executable.execute_if_like_last(leaves)
    if results is UNLIKE:
        results = executable.execute(executable.transfer_in_or_fail(leaves, executable.tree))
    return results

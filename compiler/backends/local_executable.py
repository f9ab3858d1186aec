"""A program of one signature on devices of this process: check arguments, run the plan, rebuild results."""

from __future__ import annotations

import itertools
import logging
import operator
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax

from pathways.compiler.backends.executable import ProgramExecutable
from pathways.compiler.backends.mirrors import Mirrors
from pathways.compiler.backends.replicated import Replicated
from pathways.compiler.frontend import jax_internals
from pathways.compiler.frontend.arguments import Signature, is_type
from pathways.compiler.frontend.interface import Interface
from pathways.compiler.frontend.notices import warn
from pathways.runtime.local.checks import check_alive
from pathways.runtime.local.devices import session
from pathways.runtime.local.facts import device_text, flops_of
from pathways.runtime.local.load import Executable
from pathways.runtime.local.memory import MemoryAnalysis, analyze, stats_of
from pathways.runtime.plan.plan import Plan, Transfer
from pathways.runtime.xla import pjrt

_LARGE = 1 << 20
"""Bytes of an argument from which on moving it in every call is worth a warning."""

_OFTEN = 3
"""The calls that move the same array before they warn."""

UNLIKE = object()
"""What `LocalExecutable.execute_if_like_last` returns when it did not run."""

log = logging.getLogger("pathways")


_mirrors = Mirrors()

_executables: weakref.WeakSet[LocalExecutable] = weakref.WeakSet()


def _retire_all() -> None:
    """Has programs compile for other devices at their next call."""
    for executable in list(_executables):
        executable.context = None


session.when_left(_retire_all)


class LocalExecutable(ProgramExecutable):
    """One signature of a program on its devices.

    Args:
      loaded: the program on its devices.
      interface: what it takes, returns and runs on.
      signature: what its arguments have to be.
      keepalive: what must live as long as the executables.
    """

    def __init__(
        self,
        loaded: Executable,
        interface: Interface,
        signature: Signature,
        keepalive: Sequence[Any] = (),
    ) -> None:
        plan = loaded.plan
        super().__init__(plan.name, interface, signature)
        self.plan = plan
        self.loaded = loaded
        self.context = signature.context
        self._unflatten = _unflatten(interface.out_tree)
        passed = [a for a in plan.arguments if a.constant is None]
        # The shardings of each argument, one per slice that it lives on; none when nothing reads it.
        self._places: list[tuple[Any, ...]] = [()] * len(passed)
        for port in loaded.inputs:
            self._places[port.number] += (port.sharding,)
        self._replicated = {
            n: Replicated.of(a.replicas, self._places[n])
            for n, a in enumerate(passed)
            if a.replicas is not None and self._places[n]
        }
        # Where callers keep each argument.
        self._homes = [
            self._replicated[n].sharding if n in self._replicated else next(iter(places), None)
            for n, places in enumerate(self._places)
        ]
        self._slices = [tuple(a.slots) for a in passed]
        self._unread = [n for n, places in enumerate(self._places) if not places]
        self._mirrored = [
            n for n, places in enumerate(self._places) if len(places) > 1 or n in self._replicated
        ]
        avals = [_without_keys(aval) for aval in signature.avals]
        self._cutters = {n: whole.cutter(avals[n]) for n, whole in self._replicated.items()}
        self._keys = [n for n, aval in enumerate(signature.avals) if _is_key(aval)]
        self._donated = [n for n, a in enumerate(passed) if a.donated]
        # Results must not be weakly typed where what the caller passed for them is.
        self._handed_through = {
            n: pjrt.rewrap(signature.avals[n], home)
            for n in _handed_through(plan)
            if (home := self._homes[n]) is not None
            and not (signature.strict or signature.avals[n].weak_type or n in self._keys)
        }
        self._rearranged = bool(self._unread or self._mirrored or self._keys)
        self._slot_order = _slot_order([len(places) for places in self._places], self._replicated)
        self._prepare_results()
        self._plain = not (self._donated or self._rearranged or self._mirrored_results)
        # What the last call brought; a call that brings the like again needs no other check.
        self._avals: list[Any] = [None] * len(passed)
        self._shardings: list[Any] = [None] * len(passed)
        self._remarked: set[int] = set()
        # The array that was last moved for each large argument, and in how many calls in a row.
        self._moved: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._warned: set[int] = set()
        self._alive = (keepalive, list(interface.slices.values()))
        _executables.add(self)

    def _prepare_results(self) -> None:
        """Which slots each result has, and how those of several are joined."""
        plan = self.plan
        ends = list(itertools.accumulate(len(r.slots) for r in plan.results))
        starts = [0, *ends[:-1]] if ends else []
        self._first_results = starts
        self._mirrored_results = [
            (n, a, b) for n, (a, b) in enumerate(zip(starts, ends, strict=True)) if b - a > 1
        ]
        outputs = [port.sharding for port in self.loaded.outputs]
        self._replicated_results = {
            n: Replicated.of(r.replicas, outputs[starts[n] : ends[n]])
            for n, r in enumerate(plan.results)
            if r.replicas is not None
        }
        self._joiners = {
            n: (whole.joiner(self.interface.out_avals[n]), [len(others) + 1 for others in whole.others])
            for n, whole in self._replicated_results.items()
        }

    @property
    def argument_shardings(self) -> list[Any]:
        """Where each argument lives, on the first of its slices; None for one that nothing reads."""
        return list(self._homes)

    @property
    def result_shardings(self) -> list[Any]:
        """Where each result lives, on the first of its slices."""
        first = {port.number: port.sharding for port in reversed(self.loaded.outputs)}
        joined = self._replicated_results
        return [joined[n].sharding if n in joined else first[n] for n in range(len(self.interface.out_avals))]

    def memory_analysis(self) -> MemoryAnalysis:
        """The memory that one call takes on each slice."""
        return analyze(self.plan, stats_of(self.loaded.executables))

    def flops(self, computation: str, slice: str) -> float:
        """The floating-point operations of one launch on a slice, on all its devices."""
        return flops_of(self.loaded.executables[computation, slice])

    def device_text(self) -> str:
        """XLA's optimized module of each computation on each slice."""
        return device_text(self.loaded.executables)

    def execute_if_like_last(self, leaves: list[Any]) -> Any:
        """Runs the plan if all arguments are arrays like those of the last call, else returns `UNLIKE`."""
        try:
            if [x.aval for x in leaves] != self._avals or [x.sharding for x in leaves] != self._shardings:
                return UNLIKE
        except AttributeError:
            return UNLIKE
        if self._plain:
            return self._unflatten(self.loaded.run(leaves))
        return self.execute(leaves)

    def execute(self, leaves: list[Any]) -> Any:
        """Runs the plan on arguments that are in place."""
        if self._donated:
            self._check_donated(leaves)
        if self._rearranged:
            leaves = self._rearrange(leaves)
        results = self.loaded.run(leaves)
        if self._mirrored_results:
            results = self._join(results)
        return self._unflatten(results)

    def transfer_in(self, leaves: list[Any]) -> list[Any] | None:
        """Transfers arguments to their slices; None when they are of another signature."""
        moves = self._misplaced(leaves)
        if moves is None:
            return None
        brought = self._moved_to_slices(leaves, moves) if moves else list(leaves)
        for n, rewrap in self._handed_through.items():
            if brought[n].weak_type:
                brought[n] = rewrap(brought[n])
        return brought

    def _moved_to_slices(self, leaves: list[Any], moves: list[int]) -> list[Any]:
        """All arguments, some of them moved; those that are donated end where they were."""
        if self._donated:
            self._check_donated(leaves)
        for n in moves:
            if isinstance(leaves[n], jax.Array):
                check_alive(self.name, self.paths[n], leaves[n])
            self._warn_if_moved_again(n, leaves[n])
        brought = list(leaves)
        for n, array in self._put(leaves, moves).items():
            brought[n] = array
        for n in moves:
            if n in self._donated and _is_apart(leaves[n], brought[n]):
                leaves[n].delete()
        return brought

    def place(self, leaves: Mapping[int, Any]) -> dict[int, Any]:
        """See `ProgramExecutable.place`."""
        moves = []
        for n, leaf in leaves.items():
            self.check(n, leaf)
            home = self._homes[n]
            if home is None:
                continue
            if not isinstance(leaf, jax.Array) or not leaf.sharding.is_equivalent_to(home, leaf.ndim):
                moves.append(n)
        return {**leaves, **self._put(leaves, moves)}

    def _put(self, leaves: Mapping[int, Any] | list[Any], moves: list[int]) -> dict[int, Any]:
        """Copies of some arguments on their first slices."""
        placed = jax.device_put(
            [leaves[n] for n in moves],
            [self._homes[n] for n in moves],
            # An alias of what the caller keeps must not be donated.
            may_alias=[n not in self._donated for n in moves],
        )
        return dict(zip(moves, placed, strict=True))

    def _warn_if_moved_again(self, n: int, leaf: Any) -> None:
        """Warns once of a large argument that every call brings from where it is, though it is the same."""
        if getattr(leaf, "nbytes", 0) < _LARGE:
            return
        last, calls = self._moved.get(n, (None, 0))
        calls = calls + 1 if last is not None and last() is leaf else 1
        self._moved[n] = weakref.ref(leaf), calls
        if calls == _OFTEN and n not in self._warned:
            self._warned.add(n)
            warn(
                f"program '{self.name}': argument {self.paths[n]} of {leaf.nbytes / 2**20:.1f} MiB is sent "
                f"to slice {self._slices[n][0]} in every call; put it there once with `place` of the program"
            )

    def _misplaced(self, leaves: list[Any]) -> list[int] | None:
        """The numbers of the arguments that are not on their slices; None for another signature."""
        moves: list[int] = []
        for n, (leaf, aval, place) in enumerate(zip(leaves, self._avals, self._shardings, strict=True)):
            sharding: Any = getattr(leaf, "sharding", None)
            if sharding is not None and sharding == place and leaf.aval == aval:
                continue
            if isinstance(leaf, jax.Array) and not isinstance(leaf, jax_internals.Tracer):
                if not self._signature.takes(n, leaf.aval):
                    return None
                if self._homes[n] is None or sharding.is_equivalent_to(self._homes[n], leaf.ndim):
                    if n not in self._handed_through or not leaf.weak_type:
                        self._avals[n], self._shardings[n] = leaf.aval, sharding
                    continue
                if leaf.committed:
                    self._remark(n, sharding)
            elif not self._is_like(leaf, n):
                return None
            if self._places[n]:
                moves.append(n)
        return moves

    def _is_like(self, leaf: Any, n: int) -> bool:
        """Whether something from the host has the type that argument `n` was compiled for."""
        if isinstance(leaf, jax_internals.Tracer) or is_type(leaf):
            return False
        try:
            return self._signature.takes(n, jax_internals.abstractify(leaf))
        except (TypeError, ValueError, OverflowError):
            return False

    def _remark(self, n: int, sharding: Any) -> None:
        """Says once for each argument that a call has to move it."""
        if n not in self._remarked:
            self._remarked.add(n)
            log.info(
                "program '%s': argument %s lives on %s and is moved to slice %s in every call",
                self.name,
                self.paths[n],
                sorted(str(d) for d in sharding.device_set),
                self._slices[n][0],
            )

    def _check_donated(self, leaves: list[Any]) -> None:
        if len(set(map(id, leaves))) == len(leaves):
            return
        donated = {id(leaves[n]) for n in self._donated}
        seen: dict[int, int] = {}
        for n, leaf in enumerate(leaves):
            first = seen.setdefault(id(leaf), n)
            # Numbers and numpy arrays are copied, as often as they are passed.
            if first != n and id(leaf) in donated and isinstance(leaf, jax.Array):
                raise ValueError(
                    f"program '{self.name}': arguments {self.paths[first]} and {self.paths[n]} are the "
                    "same array, and one of them is donated; pass a copy"
                )

    def _rearrange(self, leaves: list[Any]) -> list[Any]:
        """From one array per argument to one per slot."""
        leaves = list(leaves)
        for n in self._keys:
            leaves[n] = jax_internals.key_data(leaves[n])
        copied: list[Any] = []
        for n in self._mirrored:
            others = self._places[n] if n in self._cutters else self._places[n][1:]
            copies = _mirrors.find(leaves[n], others)
            if copies is None:
                check_alive(self.name, self.paths[n], leaves[n])
                copies = tuple(
                    self._cutters[n](leaves[n])
                    if n in self._cutters
                    else jax.device_put([leaves[n]] * len(others), list(others), may_alias=False)
                )
                if n not in self._donated:
                    _mirrors.add(leaves[n], copies)
            copied += copies
        leaves += copied
        return [leaves[n] for n in self._slot_order]

    def _join(self, results: list[Any]) -> list[Any]:
        """From one array per result slot to one per result."""
        joined = {}
        for n, first, end in self._mirrored_results:
            if n not in self._joiners:
                _mirrors.add(results[first], results[first + 1 : end])
                continue
            join, counts = self._joiners[n]
            starts = itertools.accumulate(counts[:-1], initial=first)
            joined[n] = join([results[start] for start in starts])
            _mirrors.add(joined[n], results[first:end])
        return [joined[n] if n in joined else results[first] for n, first in enumerate(self._first_results)]


def _is_apart(source: Any, target: Any) -> bool:
    """Whether an array was copied to other devices: on a device that both have, JAX shares its buffer."""
    return isinstance(source, jax.Array) and not source.devices() & target.devices()


def _without_keys(aval: Any) -> Any:
    """The aval of an argument as launches take it: of typed PRNG keys that of their words."""
    if not _is_key(aval):
        return aval
    words = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
    return jax.core.ShapedArray(words.shape, words.dtype)


def _is_key(aval: Any) -> bool:
    return jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)


def _unflatten(tree: Any) -> Callable[[list[Any]], Any]:
    """How to rebuild results; most programs of one launch return one array, which needs no tree."""
    # None is a structure of one node too, and has no leaf.
    return operator.itemgetter(0) if tree.num_nodes == tree.num_leaves == 1 else tree.unflatten


def _handed_through(plan: Plan) -> list[int]:
    """The arguments that are results as they are, perhaps on other slices."""
    passed = [argument for argument in plan.arguments if argument.constant is None]
    source = {slot: n for n, argument in enumerate(passed) for slot in argument.slots.values()}
    for step in plan.steps:
        if isinstance(step, Transfer):
            source |= {slot: source[step.operands[0]] for slot in step.results if step.operands[0] in source}
    return sorted({source[slot] for r in plan.results for slot in r.slots.values() if slot in source})


def _slot_order(counts: list[int], replicated: Collection[int]) -> list[int]:
    """Where the array of each slot is, in a list of all arguments and then all copies of mirrored ones.

    Of one that replicas share, callers have no copy that is one of a slot.
    """
    order: list[int] = []
    copy = len(counts)
    for n, count in enumerate(counts):
        if n in replicated:
            order += range(copy, copy + count)
            copy += count
        elif count:
            order += [n, *range(copy, copy + count - 1)]
            copy += count - 1
    return order

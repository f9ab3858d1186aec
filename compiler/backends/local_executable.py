"""Program of one signature on devices of this process: checks arguments, runs the plan, rebuilds results."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, override

import jax
import numpy as np
from jax.sharding import NamedSharding

from pathways.compiler.backends.executable import CACHE_MISS, ProgramExecutable
from pathways.compiler.backends.mirrors import Mirrors
from pathways.compiler.backends.replicated import Replicated
from pathways.compiler.frontend import jax_internals
from pathways.compiler.frontend.arguments import Interface, Signature, is_type
from pathways.compiler.frontend.user_code import warn
from pathways.runtime.local.checks import check_alive
from pathways.runtime.local.devices import process_cluster
from pathways.runtime.local.load import Executable, device_text, stats_of
from pathways.runtime.local.memory import MemoryAnalysis, analyze
from pathways.runtime.plan.plan import Plan, Transfer
from pathways.runtime.xla import pjrt

_LARGE = 1 << 20
"""Size of an argument from which moving it in every call is worth a warning."""

_SMALL = 64 << 10
"""Size up to which an argument of NumPy is copied: JAX may read its memory after the call, or alias it."""

_OFTEN = 3
"""Number of calls that move the same array before they warn."""

log = logging.getLogger("pathways")


_mirrors = Mirrors()

_executables: weakref.WeakSet[LocalExecutable] = weakref.WeakSet()


def _retire_all() -> None:
    """Makes programs compile again at their next call, for other devices."""
    for executable in list(_executables):
        executable.context = None


process_cluster.on_disconnect(_retire_all)


@dataclasses.dataclass(frozen=True, slots=True)
class _ArgumentPlacement:
    """Placement of one argument.

    Attributes:
      slice: the first of its slices.
      home: its sharding for callers; None if nothing reads it.
      copied_to: the shardings of the copies that launches read besides the callers' array.
      is_key: whether it has typed PRNG keys; launches take their words.
      cut: computes the copies of all replicas from the callers' array; None if that is one of the copies.
      rewrap: removes its weak type; None if that may stay.
    """

    number: int
    slice: str
    home: NamedSharding | None
    copied_to: tuple[NamedSharding, ...]
    is_key: bool
    cut: Callable[[Any], list[Any]] | None
    rewrap: Callable[[Any], Any] | None

    def copies_of(self, array: Any) -> tuple[Any, ...]:
        """Returns the copies of the callers' array where launches read it."""
        if self.cut is not None:
            return tuple(self.cut(array))
        places = list(self.copied_to)
        return tuple(pjrt.device_put([array] * len(places), places, may_alias=False))


@dataclasses.dataclass(frozen=True, slots=True)
class _ResultPlacement:
    """Placement of one result.

    Attributes:
      arrays: the positions of its arrays in the results of the plan.
      sharding: its sharding for callers.
      join: assembles the callers' array from the blocks of replicas; None if that is the first array.
      blocks: the positions of these blocks in the results of the plan.
    """

    arrays: range
    sharding: NamedSharding
    join: Callable[[Sequence[Any]], Any] | None
    blocks: tuple[int, ...]


class LocalExecutable(ProgramExecutable):
    """Program of one signature on its devices.

    Args:
      interface: its arguments, results and slices.
      keepalive: objects that must live as long as the executables.
    """

    def __init__(
        self, loaded: Executable, interface: Interface, signature: Signature, keepalive: Sequence[Any] = ()
    ) -> None:
        super().__init__(loaded.plan, interface, signature)
        self.loaded = loaded
        self.context = signature.context
        self._unflatten = _unflatten(interface.out_tree)
        self._arguments = _arguments(loaded, signature)
        self._results = _results(loaded, interface)
        self._keys = [argument.number for argument in self._arguments if argument.is_key]
        self._mirrored = [argument for argument in self._arguments if argument.copied_to]
        self._rewrapped = [argument for argument in self._arguments if argument.rewrap is not None]
        self._slot_order = _slot_order(self._arguments)
        is_unread = any(argument.home is None for argument in self._arguments)
        self._rearranged = bool(is_unread or self._mirrored or self._keys)
        self._mirrored_results = [n for n, result in enumerate(self._results) if len(result.arrays) > 1]
        self._plain = not (self._donated or self._rearranged or self._mirrored_results)
        # The arguments of the last call; one with like arguments needs no other check.
        self._avals: list[Any] = [None] * len(self._arguments)
        self._shardings: list[Any] = [None] * len(self._arguments)
        self._remarked: set[int] = set()
        # The array that was last moved for each large argument, and the number of calls in a row that moved
        # it.
        self._moved: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._warned: set[int] = set()
        self._alive = (keepalive, list(interface.slices.values()))
        _executables.add(self)

    @property
    def argument_shardings(self) -> list[Any]:
        """The placement of each argument on the first of its slices; None for one that nothing reads."""
        return [argument.home for argument in self._arguments]

    @property
    def result_shardings(self) -> list[Any]:
        """The placement of each result on the first of its slices."""
        return [result.sharding for result in self._results]

    def memory_analysis(self) -> MemoryAnalysis:
        """Returns the memory that one call needs on each slice."""
        return analyze(self.plan, stats_of(self.loaded.executables))

    def flops(self, computation: str, slice: str) -> float:
        """Returns the floating-point operations of one launch on a slice, on all its devices."""
        return pjrt.flops_of(self.loaded.executables[computation, slice])

    def device_text(self) -> str:
        """Returns XLA's optimized module of each computation on each slice."""
        return device_text(self.loaded.executables)

    def try_fast_path(self, leaves: list[Any]) -> Any:
        """Runs the plan if all arguments match the last call; returns `CACHE_MISS` otherwise."""
        try:
            # Lists compare items by identity first, which is fast where arrays share the cached objects.
            if [x.aval for x in leaves] != self._avals or [x.sharding for x in leaves] != self._shardings:
                return CACHE_MISS
        except AttributeError:
            return CACHE_MISS
        if self._plain:
            return self._unflatten(self.loaded.run(leaves))
        return self.execute(leaves)

    def execute(self, leaves: list[Any]) -> Any:
        """Runs the plan on arguments that are on their slices."""
        if self._donated:
            self._check_donated(leaves)
        if self._rearranged:
            leaves = self._rearrange(leaves)
        results = self.loaded.run(leaves)
        if self._mirrored_results:
            results = self._join(results)
        return self._unflatten(results)

    def transfer_arguments(self, leaves: list[Any]) -> list[Any] | None:
        """Transfers arguments to their slices; returns None if they have another signature."""
        moves = self._misplaced(leaves)
        if moves is None:
            return None
        placed = self._moved_to_slices(leaves, moves) if moves else list(leaves)
        for argument in self._rewrapped:
            if placed[argument.number].weak_type:
                assert argument.rewrap is not None
                placed[argument.number] = argument.rewrap(placed[argument.number])
        return placed

    def _moved_to_slices(self, leaves: list[Any], moves: list[int]) -> list[Any]:
        """Returns all arguments, some of them moved; donated originals are deleted."""
        if self._donated:
            self._check_donated(leaves)
        for n in moves:
            if isinstance(leaves[n], jax.Array):
                check_alive(self.name, self.paths[n], leaves[n])
            self._warn_if_moved_again(n, leaves[n])
        placed = list(leaves)
        for n, array in self._put(leaves, moves).items():
            placed[n] = array
        for n in moves:
            if n in self._donated and _is_apart(leaves[n], placed[n]):
                leaves[n].delete()
        return placed

    @override
    def put_arguments(self, leaves: Mapping[int, Any], *, copy: bool) -> dict[int, Any]:
        if copy:
            for n, leaf in leaves.items():
                self.check(n, leaf)
        moves = []
        for n, leaf in leaves.items():
            home = self._arguments[n].home
            if home is None:
                continue
            if not isinstance(leaf, jax.Array) or not leaf.sharding.is_equivalent_to(home, leaf.ndim):
                moves.append(n)
        placed = {**leaves, **self._put(leaves, moves)}
        if not copy:
            return placed
        sharing = {name for name, slice in self.interface.slices.items() if slice.overlap}
        shared = [
            n
            for n, leaf in leaves.items()
            if isinstance(leaf, jax.Array)
            and self._arguments[n].home is not None
            and self._arguments[n].slice in sharing
        ]
        # The buffer may be shared with another slice on the same devices, whose program may donate it later.
        return {**placed, **self._put(placed, shared, may_alias=False)}

    def _put(
        self, leaves: Mapping[int, Any] | list[Any], moves: list[int], *, may_alias: bool = True
    ) -> dict[int, Any]:
        """Returns copies of some arguments on their first slices."""
        if not moves:
            return {}
        placed = pjrt.device_put(
            [_apart_if_small(leaves[n]) for n in moves],
            [self._arguments[n].home for n in moves],
            # An alias of an array that the caller keeps must not be donated.
            may_alias=[may_alias and n not in self._donated for n in moves],
        )
        return dict(zip(moves, placed, strict=True))

    def _warn_if_moved_again(self, n: int, leaf: Any) -> None:
        """Warns once of a large argument that is the same in every call, and moved by each."""
        if getattr(leaf, "nbytes", 0) < _LARGE:
            return
        last, calls = self._moved.get(n, (None, 0))
        calls = calls + 1 if last is not None and last() is leaf else 1
        self._moved[n] = weakref.ref(leaf), calls
        if calls == _OFTEN and n not in self._warned:
            self._warned.add(n)
            warn(
                f"program '{self.name}': argument {self.paths[n]} of {leaf.nbytes / 2**20:.1f} MiB is sent "
                f"to slice {self._arguments[n].slice} in every call; put it there once with `place` of the "
                "program"
            )

    def _misplaced(self, leaves: list[Any]) -> list[int] | None:
        """Returns the numbers of the arguments that are not on their slices; None for another signature."""
        moves: list[int] = []
        for n, (leaf, aval, place) in enumerate(zip(leaves, self._avals, self._shardings, strict=True)):
            sharding: Any = getattr(leaf, "sharding", None)
            if sharding is not None and sharding == place and leaf.aval == aval:
                continue
            argument = self._arguments[n]
            if isinstance(leaf, jax.Array) and not isinstance(leaf, jax_internals.Tracer):
                if not self._signature.takes(n, leaf, leaf.aval):
                    return None
                if argument.home is None or sharding.is_equivalent_to(argument.home, leaf.ndim):
                    if argument.rewrap is None or not leaf.weak_type:
                        # For the fast path, which neither moves arguments nor removes weak types.
                        self._avals[n], self._shardings[n] = leaf.aval, sharding
                    continue
                if leaf.committed:
                    self._remark(n, sharding)
            elif not self._is_like(leaf, n):
                return None
            if argument.home is not None:
                moves.append(n)
        return moves

    def _is_like(self, leaf: Any, n: int) -> bool:
        """Returns whether a value of the host has the type that argument `n` was compiled for."""
        if isinstance(leaf, jax_internals.Tracer) or is_type(leaf):
            return False
        try:
            return self._signature.takes(n, leaf, jax_internals.abstractify(leaf))
        except (TypeError, ValueError, OverflowError):
            return False

    def _remark(self, n: int, sharding: Any) -> None:
        """Logs once for each argument that a call has to move it."""
        if n not in self._remarked:
            self._remarked.add(n)
            log.info(
                "program '%s': argument %s lives on %s and is moved to slice %s in every call",
                self.name,
                self.paths[n],
                sorted(str(d) for d in sharding.device_set),
                self._arguments[n].slice,
            )

    def _rearrange(self, leaves: list[Any]) -> list[Any]:
        """Returns one array per slot, from one per argument."""
        leaves = list(leaves)
        for n in self._keys:
            leaves[n] = jax_internals.key_data(leaves[n])
        copied: list[Any] = []
        for argument in self._mirrored:
            array = leaves[argument.number]
            copies = _mirrors.find(array, argument.copied_to)
            if copies is None:
                check_alive(self.name, self.paths[argument.number], array)
                copies = argument.copies_of(array)
                # A donated array cannot be passed again, so nothing would find its copies.
                if argument.number not in self._donated:
                    _mirrors.add(array, copies)
            copied += copies
        leaves += copied
        return [leaves[n] for n in self._slot_order]

    def _join(self, results: list[Any]) -> list[Any]:
        """Returns one array per result, from one per result slot."""
        joined = [results[result.arrays.start] for result in self._results]
        for n in self._mirrored_results:
            result = self._results[n]
            copies = results[result.arrays.start : result.arrays.stop]
            if result.join is None:
                del copies[0]
            else:
                joined[n] = result.join([results[block] for block in result.blocks])
            # A later call with this result as an argument finds its copies, and moves nothing.
            _mirrors.add(joined[n], copies)
        return joined


def _apart_if_small(leaf: Any) -> Any:
    """Returns a copy of a small array of NumPy, which the caller may change right after the call."""
    return leaf.copy() if isinstance(leaf, np.ndarray) and leaf.nbytes <= _SMALL else leaf


def _arguments(loaded: Executable, signature: Signature) -> list[_ArgumentPlacement]:
    """Returns the placement of each argument."""
    passed = [argument for argument in loaded.plan.arguments if argument.constant is None]
    shardings: list[list[NamedSharding]] = [[] for _ in passed]
    for port in loaded.inputs:
        shardings[port.number].append(port.sharding)
    handed_through = _handed_through(loaded.plan)
    arguments = []
    for n, (argument, places, aval) in enumerate(zip(passed, shardings, signature.avals, strict=True)):
        home, copied_to = (places[0] if places else None), places[1:]
        cut = rewrap = None
        if argument.replicas is not None and places:
            replicated = Replicated.of(argument.replicas, places)
            home, copied_to, cut = replicated.sharding, places, replicated.cutter(_without_keys(aval))
        is_key = _is_key(aval)
        # Results must not have a weak type if the caller's argument in their place has none.
        if n in handed_through and home is not None and not (signature.strict or aval.weak_type or is_key):
            rewrap = pjrt.rewrap(aval, home)
        first = next(iter(argument.slots), "")
        arguments.append(_ArgumentPlacement(n, first, home, tuple(copied_to), is_key, cut, rewrap))
    return arguments


def _results(loaded: Executable, interface: Interface) -> list[_ResultPlacement]:
    """Returns the placement of each result."""
    results, first = [], 0
    for result, aval in zip(loaded.plan.results, interface.out_avals, strict=True):
        arrays = range(first, first + len(result.slots))
        first = arrays.stop
        shardings = [port.sharding for port in loaded.outputs[arrays.start : arrays.stop]]
        if result.replicas is None:
            results.append(_ResultPlacement(arrays, shardings[0], None, ()))
            continue
        replicated = Replicated.of(result.replicas, shardings)
        # The arrays of a replica are its block, which is joined, and then the copies of that.
        counts = [len(copies) + 1 for copies in replicated.copies]
        blocks = itertools.accumulate(counts[:-1], initial=arrays.start)
        results.append(_ResultPlacement(arrays, replicated.sharding, replicated.joiner(aval), tuple(blocks)))
    return results


def _is_apart(source: Any, target: Any) -> bool:
    """Returns whether an array was copied to other devices: JAX shares its buffer on a common device."""
    return isinstance(source, jax.Array) and not source.devices() & target.devices()


def _without_keys(aval: Any) -> Any:
    """Returns the aval of an argument as launches take it: for typed PRNG keys, the aval of their words."""
    if not _is_key(aval):
        return aval
    words = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
    return jax.core.ShapedArray(words.shape, words.dtype)


def _is_key(aval: Any) -> bool:
    return jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)


def _unflatten(tree: Any) -> Callable[[list[Any]], Any]:
    """Returns a function that rebuilds results: many programs return one array, without a tree."""
    # None is a structure of one node, too, but has no leaf.
    return operator.itemgetter(0) if tree.num_nodes == tree.num_leaves == 1 else tree.unflatten


def _handed_through(plan: Plan) -> set[int]:
    """Returns the arguments that are returned unchanged, perhaps on other slices."""
    passed = [argument for argument in plan.arguments if argument.constant is None]
    source = {slot: n for n, argument in enumerate(passed) for slot in argument.slots.values()}
    for step in plan.steps:
        if isinstance(step, Transfer):
            source |= {slot: source[step.operands[0]] for slot in step.results if step.operands[0] in source}
    return {source[slot] for r in plan.results for slot in r.slots.values() if slot in source}


def _slot_order(arguments: Sequence[_ArgumentPlacement]) -> list[int]:
    """Returns the position of each slot's array in a list of all arguments, then all copies of mirrored ones.

    Callers' arrays of arguments that replicas share are in no slot.
    """
    order: list[int] = []
    copy = len(arguments)
    for argument in arguments:
        if argument.cut is None and argument.home is not None:
            order.append(argument.number)
        count = len(argument.copied_to)
        order += range(copy, copy + count)
        copy += count
    return order

"""Base of executables: a program of one signature on its devices, in this process or on hosts."""

from __future__ import annotations

import abc
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jaxlib.mlir import ir

from pathways.compiler.backends.homes import homes_of
from pathways.compiler.frontend import jax_internals
from pathways.compiler.frontend.arguments import Interface, Signature, abstract
from pathways.compiler.frontend.jax_internals import DEVICE_MEMORY
from pathways.compiler.frontend.memory_kinds import in_memory, kind_of
from pathways.compiler.frontend.trees import name_of
from pathways.runtime.local.devices import bind
from pathways.runtime.local.load import Executable
from pathways.runtime.local.memory import MemoryAnalysis
from pathways.runtime.plan.plan import Plan
from pathways.runtime.plan.stored import Stored
from pathways.runtime.resources.manager import Binding
from pathways.runtime.xla.compile_cache import Request


@dataclasses.dataclass(frozen=True)
class Scheduled:
    """Program that is ready to be compiled.

    Attributes:
      module: the program in scheduled form, which is not changed.
      plan: the same as a plan.
      interface: its arguments, results and slices.
      callbacks: host callbacks that the computations refer to by position.
      keepalive: objects that must live as long as the executables.
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
        """Returns the devices of each of its slices, by the name of the slice in its module.

        Raises:
          ResourceError: there are too few devices; says how many there are and what uses them.
        """
        return bind_slices(self.interface, self.plan)


def bind_slices(interface: Interface, plan: Plan) -> dict[str, Binding]:
    """Returns the devices of each slice of a program; see `Scheduled.bind`."""
    bindings = bind(interface.slices.values(), program=plan.name)
    return {name: bindings[virtual] for name, virtual in interface.slices.items()}


CACHE_MISS = object()
"""Result of `ProgramExecutable.try_fast_path` if it did not run."""


class ProgramExecutable(abc.ABC):
    """Program of one signature, bound to devices: it transfers arguments there, and executes.

    Args:
      plan: the scheduled program, flattened.
      interface: its arguments, results and slices.

    Attributes:
      tree: the structure of the arguments.
      context: the JAX settings it was traced under; None once its devices were disconnected.
      interface: its arguments, results and slices.
      paths: the name of each flat argument in messages.
      plan: the scheduled program, flattened.
      loaded: the loaded executable; an error if it is not in this process.
    """

    context: Any
    loaded: Executable
    _arrays: tuple[type, ...] = (jax.Array,)
    """Types of arrays that a donation deletes; numbers and numpy arrays are copied each time they are
    passed."""

    @property
    @abc.abstractmethod
    def argument_shardings(self) -> list[Any]:
        """The placement of each argument on the first of its slices; None for one that nothing reads."""

    @property
    @abc.abstractmethod
    def result_shardings(self) -> list[Any]:
        """The placement of each result on the first of its slices."""

    def result_types(self) -> list[Any]:
        """Returns a `jax.ShapeDtypeStruct` for each result, with its sharding."""
        return [
            jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=aval.weak_type)
            for aval, sharding in zip(self.interface.out_avals, self.result_shardings, strict=True)
        ]

    def argument_types(self, numbers: Sequence[int]) -> list[Any]:
        """Returns a `jax.ShapeDtypeStruct` for some arguments, with the required sharding."""
        avals, shardings = self._signature.avals, self.argument_shardings
        return [jax.ShapeDtypeStruct(avals[n].shape, avals[n].dtype, sharding=shardings[n]) for n in numbers]

    def __init__(self, plan: Plan, interface: Interface, signature: Signature) -> None:
        self.plan = plan
        self.name = plan.name
        self.tree = signature.tree
        self.static = signature.static
        self.interface = interface
        self.paths = interface.argument_paths
        self._signature = signature
        passed = [argument for argument in plan.arguments if argument.constant is None]
        self._donated = frozenset(n for n, argument in enumerate(passed) if argument.donated)

    def is_at_home(self, numbers: Sequence[int], leaves: Sequence[Any]) -> bool:
        """Returns whether some arguments, by their numbers, are on the slices that it was compiled for.

        They always are if placed functions determine its slices.
        """
        homes = self.interface.homes
        return not homes or tuple(homes[n] for n in numbers) == homes_of(leaves)

    @property
    def is_lost(self) -> bool:
        """Whether its devices were disconnected, or one of its hosts is lost: no call uses it any more."""
        return self.context is None

    @property
    def is_restorable(self) -> bool:
        """Whether `load_again` loads it after the loss of a host."""
        return False

    def load_again(self) -> ProgramExecutable:
        """Returns an executable of the same program on workers that replaced lost ones; lowers nothing again.

        Raises:
          HostError: a host was lost, or cannot compile its program.
          ResourceError: the devices have too little memory.
        """
        raise RuntimeError(f"program '{self.name}' runs in this process, whose devices are not replaced")

    def has_signature(self, signature: Signature) -> bool:
        """Returns whether it was traced for arguments of a signature, on slices that may be lost by now."""
        compiled = self._signature
        return (
            compiled.tree == signature.tree
            and compiled.static == signature.static
            and compiled.context == signature.context
            and self.accepts_types(signature)
        )

    def accepts_types(self, signature: Signature) -> bool:
        """Returns whether all arguments may have the types of a signature."""
        types = enumerate(signature.avals)
        return all(self._signature.accepts(n, aval, signature.kind(n)) for n, aval in types)

    def arguments(self) -> dict[str, tuple[range, Any]]:
        """Returns the numbers of the leaves and the structure of each argument with leaves, by its name."""
        trees: dict[str, tuple[range, Any]] = {}
        first = 0
        for tree in (part for group in self.tree.children() for part in group.children()):
            numbers = range(first, first + tree.num_leaves)
            first = numbers.stop
            if numbers:
                # The first two steps of a path are the argument: positional or named, and which of them.
                inside = name_of(self._signature.keys[numbers.start][2:])
                trees[self.paths[numbers.start].removesuffix(inside)] = numbers, tree
        return trees

    def argument(self, name: str) -> tuple[range, Any]:
        """Returns the numbers of the leaves of an argument, and its structure.

        Raises:
          ValueError: there is no such argument, or it has no leaves.
        """
        arguments = self.arguments()
        if name not in arguments:
            raise ValueError(
                f"program '{self.name}' has no argument {name!r}, only {', '.join(arguments) or 'none'}"
            )
        return arguments[name]

    def accepts(self, numbers: Sequence[int], leaves: Sequence[Any]) -> bool:
        """Returns whether some arguments, by their numbers, have the compiled types."""
        avals = abstract(leaves, self.name, lambda: [self.paths[n] for n in numbers], values=True)
        typed = zip(numbers, avals, leaves, strict=True)
        return all(self._signature.takes(n, leaf, aval) for n, aval, leaf in typed)

    def check(self, n: int, leaf: Any) -> None:
        """Checks that an argument has the compiled type.

        Raises:
          TypeError: it does not.
        """
        (aval,) = abstract([leaf], self.name, lambda: [self.paths[n]], values=True)
        if not self._signature.takes(n, leaf, aval):
            raise self.mismatch(n, aval, kind_of(leaf))

    @abc.abstractmethod
    def memory_analysis(self) -> MemoryAnalysis:
        """Returns the memory that one call needs on each slice."""

    @abc.abstractmethod
    def flops(self, computation: str, slice: str) -> float:
        """Returns the floating-point operations of one launch on a slice, on all its devices."""

    @property
    def step_deadline(self) -> float | None:
        """The time after which a loop without a known end fails, in seconds; None for no limit."""
        return None

    def requests(self) -> Mapping[str, Sequence[Request]]:
        """Returns the compile requests of each sub-program, or of the program under an empty name."""
        return {"": self.loaded.requests}

    @abc.abstractmethod
    def device_text(self) -> str:
        """Returns XLA's optimized module of each computation on each slice."""

    @abc.abstractmethod
    def transfer_arguments(self, leaves: list[Any]) -> list[Any] | None:
        """Transfers arguments to their slices; returns None if they have another signature."""

    @abc.abstractmethod
    def put_arguments(self, leaves: Mapping[int, Any], *, copy: bool) -> dict[int, Any]:
        """Returns some arguments, by their numbers, on the slices that read them.

        Args:
          copy: whether the caller keeps the results, as with `Compiled.place`: then types are checked, and
            buffers that the owner of the original may donate are copied. Without it the results are for one
            call.

        Raises:
          TypeError: an argument has not the compiled type.
        """

    @abc.abstractmethod
    def execute(self, leaves: list[Any]) -> Any:
        """Runs the plan on arguments that are on their slices."""

    @abc.abstractmethod
    def try_fast_path(self, leaves: list[Any]) -> Any:
        """Runs the plan if all arguments match the last call; returns `CACHE_MISS` otherwise."""

    def transfer_or_raise(self, leaves: list[Any], tree: Any) -> list[Any]:
        """Transfers arguments to their slices.

        Raises:
          TypeError: they have not the compiled signature; names the argument.
        """
        if tree != self.tree:
            raise self._unlike(tree)
        placed = self.transfer_arguments(leaves)
        if placed is not None:
            return placed
        avals = abstract(leaves, self.name, lambda: list(self.paths), values=True)
        wrong = next(n for n, leaf in enumerate(leaves) if not self._signature.takes(n, leaf, avals[n]))
        raise self.mismatch(wrong, avals[wrong], kind_of(leaves[wrong]))

    def _check_donated(self, leaves: Sequence[Any]) -> None:
        """Rejects an array that is passed twice if one of these arguments is donated."""
        if len(set(map(id, leaves))) == len(leaves):
            return
        donated = {id(leaves[n]) for n in self._donated}
        seen: dict[int, int] = {}
        for n, leaf in enumerate(leaves):
            first = seen.setdefault(id(leaf), n)
            if first != n and id(leaf) in donated and isinstance(leaf, self._arrays):
                raise ValueError(
                    f"program '{self.name}': arguments {self.paths[first]} and {self.paths[n]} are the "
                    "same array, and one of them is donated; pass a copy"
                )

    def _unlike(self, tree: Any) -> TypeError:
        """Returns the error of arguments of another structure than the program was compiled for."""
        try:
            path, compiled, passed, reason = next(iter(jax_internals.structure_errors(self.tree, tree)))
        except (
            Exception
        ):  # JAX rebuilds the tree without arrays, which registered node types may reject in any way.
            return TypeError(
                f"program '{self.name}' was compiled for arguments of structure {self.tree}, got {tree}"
            )
        return TypeError(
            f"program '{self.name}' was compiled for {self._name_at(path)} of structure {_plain(compiled)}, "
            f"got {_plain(passed)}: {reason}"
        )

    def _name_at(self, path: Sequence[Any]) -> str:
        """Returns the name of a place in the arguments; its path starts with 0 (positional) or 1 (named)."""
        if len(path) < 2:
            return "named arguments" if path and path[0].idx else "positional arguments"
        for place, name in zip(self._signature.keys, self.paths, strict=True):
            if place[:2] == tuple(path[:2]):
                return name.removesuffix(name_of(place[2:])) + name_of(tuple(path[2:]))
        return f"argument {name_of(tuple(path[1:]))}"

    def mismatch(self, n: int, aval: Any, kind: str | None) -> TypeError:
        """Returns the error of an argument of another type or memory than the program was compiled for."""
        memory = self._signature.kind(n)
        # The default memory is named only where the other one is not.
        memory, kind = (memory or DEVICE_MEMORY, kind or DEVICE_MEMORY) if memory != kind else (None, None)
        return TypeError(
            f"program '{self.name}' was compiled for {self.paths[n]} of type "
            f"{describe(self._signature.avals[n])}{in_memory(memory)}, got {describe(aval)}{in_memory(kind)}"
        )


def _plain(structure: str) -> str:
    """Returns JAX's text of one of two structures in words for users."""
    return re.sub("<class '(.*?)'>", r"\1", structure).replace("pytree leaf", "an array")


def describe(aval: Any) -> str:
    """Returns the type of an argument, for messages."""
    weak = " (weak)" if aval.weak_type else ""
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]{weak}"

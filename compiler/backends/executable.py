"""A program of one signature on its devices, wherever these are."""

from __future__ import annotations

import abc
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from pathways.compiler.frontend import jax_internals
from pathways.compiler.frontend.arguments import Signature, abstract
from pathways.compiler.frontend.interface import Interface
from pathways.compiler.frontend.trees import name_of
from pathways.runtime.local.load import Executable
from pathways.runtime.local.memory import MemoryAnalysis
from pathways.runtime.plan.plan import Plan
from pathways.runtime.xla.compile_cache import Request


class ProgramExecutable(abc.ABC):
    """A program of one signature, bound to devices: it transfers arguments there, and executes.

    Args:
      plan: the scheduled program, flattened.
      interface: what it takes, returns and runs on.
      signature: what its arguments have to be.

    Attributes:
      name: the name of the program.
      tree: the structure of the arguments.
      context: the JAX settings it was traced under.
      static: the static arguments.
      interface: what it takes, returns and runs on.
      paths: what to call each flat argument in messages.
      plan: the scheduled program, flattened.
      loaded: what XLA made of it; an error where that is not in this process.
    """

    context: Any
    loaded: Executable
    _arrays: tuple[type, ...] = (jax.Array,)
    """What a donation deletes; numbers and numpy arrays are copied, as often as they are passed."""

    @property
    @abc.abstractmethod
    def argument_shardings(self) -> list[Any]:
        """Where each argument lives, on the first of its slices; None for one that nothing reads."""

    @property
    @abc.abstractmethod
    def result_shardings(self) -> list[Any]:
        """Where each result lives, on the first of its slices."""

    def result_types(self) -> list[Any]:
        """A `jax.ShapeDtypeStruct` for each result, which says where it lives."""
        return [
            jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=aval.weak_type)
            for aval, sharding in zip(self.interface.out_avals, self.result_shardings, strict=True)
        ]

    def argument_types(self, numbers: Sequence[int]) -> list[Any]:
        """A `jax.ShapeDtypeStruct` for some arguments, which says where each has to be."""
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

    def is_for(self, signature: Signature) -> bool:
        """Whether a call with such arguments is this one."""
        own = self._signature
        if (own.tree, own.static, self.context) != (signature.tree, signature.static, signature.context):
            return False
        return all(own.takes(n, aval) for n, aval in enumerate(signature.avals))

    def arguments(self) -> dict[str, tuple[range, Any]]:
        """Returns the numbers of the leaves and the structure of each argument with leaves, by its name."""
        found: dict[str, tuple[range, Any]] = {}
        first = 0
        for tree in (part for group in self.tree.children() for part in group.children()):
            numbers = range(first, first + tree.num_leaves)
            first = numbers.stop
            if numbers:
                inside = name_of(self._signature.keys[numbers.start][2:])
                found[self.paths[numbers.start].removesuffix(inside)] = numbers, tree
        return found

    def argument(self, name: str) -> tuple[range, Any]:
        """The numbers of the leaves of an argument, and its structure.

        Raises:
          ValueError: there is no such argument, or it has no leaves.
        """
        found = self.arguments()
        if name not in found:
            raise ValueError(
                f"program '{self.name}' has no argument {name!r}, only {', '.join(found) or 'none'}"
            )
        return found[name]

    def takes(self, numbers: Sequence[int], leaves: Sequence[Any]) -> bool:
        """Whether some arguments, by their numbers, have the types that were compiled for."""
        avals = abstract(leaves, self.name, lambda: [self.paths[n] for n in numbers], values=True)
        return all(self._signature.takes(n, aval) for n, aval in zip(numbers, avals, strict=True))

    def check(self, n: int, leaf: Any) -> None:
        """Checks that an argument has the type that was compiled for.

        Raises:
          TypeError: it has not.
        """
        (aval,) = abstract([leaf], self.name, lambda: [self.paths[n]], values=True)
        if not self._signature.takes(n, aval):
            raise self.mismatch(n, aval)

    @abc.abstractmethod
    def memory_analysis(self) -> MemoryAnalysis:
        """The memory that one call takes on each slice."""

    @abc.abstractmethod
    def flops(self, computation: str, slice: str) -> float:
        """The floating-point operations of one launch on a slice, on all its devices."""

    @property
    def step_deadline(self) -> float | None:
        """After how many seconds a loop without a known end is ended; None for never."""
        return None

    def requests(self) -> Mapping[str, Sequence[Request]]:
        """What was compiled, by the part of the program that it is of; without a name where it has none."""
        return {"": self.loaded.requests}

    @abc.abstractmethod
    def device_text(self) -> str:
        """XLA's optimized module of each computation on each slice."""

    @abc.abstractmethod
    def transfer_in(self, leaves: list[Any]) -> list[Any] | None:
        """Transfers arguments to their slices; None when they are of another signature."""

    @abc.abstractmethod
    def place(self, leaves: Mapping[int, Any]) -> dict[int, Any]:
        """Some arguments, by their numbers, where calls want them; see `Compiled.place`.

        Raises:
          TypeError: one is not of the type that was compiled for.
        """

    @abc.abstractmethod
    def bring(self, leaves: Mapping[int, Any]) -> dict[int, Any]:
        """As `place`, for a call, so that what is made may end with the array that it is a copy of."""

    @abc.abstractmethod
    def execute(self, leaves: list[Any]) -> Any:
        """Runs the plan on arguments that are in place."""

    @abc.abstractmethod
    def execute_if_like_last(self, leaves: list[Any]) -> Any:
        """Runs the plan if all arguments are arrays like those of the last call, else returns `UNLIKE`."""

    def transfer_in_or_fail(self, leaves: list[Any], tree: Any) -> list[Any]:
        """Transfers arguments to their slices.

        Raises:
          TypeError: when they are not of the signature that was compiled; names the argument.
        """
        if tree != self.tree:
            raise self._unlike(tree)
        brought = self.transfer_in(leaves)
        if brought is not None:
            return brought
        avals = abstract(leaves, self.name, lambda: list(self.paths), values=True)
        wrong = next(n for n, aval in enumerate(avals) if not self._signature.takes(n, aval))
        raise self.mismatch(wrong, avals[wrong])

    def _check_donated(self, leaves: Sequence[Any]) -> None:
        """Refuses an array that is passed twice, if one of these is donated."""
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
        """The error of arguments of another structure than the program was compiled for."""
        try:
            path, compiled, passed, reason = next(iter(jax_internals.structure_errors(self.tree, tree)))
        except Exception:  # JAX builds trees of what are no arrays, which nodes may refuse in any way.
            return TypeError(
                f"program '{self.name}' was compiled for arguments of structure {self.tree}, got {tree}"
            )
        return TypeError(
            f"program '{self.name}' was compiled for {self._name_at(path)} of structure {_plain(compiled)}, "
            f"got {_plain(passed)}: {reason}"
        )

    def _name_at(self, path: Sequence[Any]) -> str:
        """What to call a place in the arguments by its path, which starts with whether they are named."""
        if len(path) < 2:
            return "named arguments" if path and path[0].idx else "positional arguments"
        for place, name in zip(self._signature.keys, self.paths, strict=True):
            if place[:2] == tuple(path[:2]):
                return name.removesuffix(name_of(place[2:])) + name_of(tuple(path[2:]))
        return f"argument {name_of(tuple(path[1:]))}"

    def mismatch(self, n: int, aval: Any) -> TypeError:
        """The error of an argument of another type than the program was compiled for."""
        return TypeError(
            f"program '{self.name}' was compiled for {self.paths[n]} of type "
            f"{describe(self._signature.avals[n])}, got {describe(aval)}"
        )


def _plain(structure: str) -> str:
    """What JAX says of one side of two structures, in words of its users."""
    return re.sub("<class '(.*?)'>", r"\1", structure).replace("pytree leaf", "an array")


def describe(aval: Any) -> str:
    """The type of an argument, for messages."""
    weak = " (weak)" if aval.weak_type else ""
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]{weak}"

"""Program of one signature on hosts: sends arguments, dispatches a step to each host, returns handles."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, override

import jax
import numpy as np

from pathways.compiler.backends.executable import CACHE_MISS, ProgramExecutable, bind_slices, describe
from pathways.compiler.backends.placed_type import PlacedType
from pathways.compiler.frontend import jax_internals
from pathways.compiler.frontend.arguments import Interface, Signature, is_type
from pathways.compiler.lower.phases import ProgramError
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.control.records.step import Step
from pathways.runtime.hosts.client.array import Array, results_of
from pathways.runtime.hosts.client.program_loader import ProgramLoader
from pathways.runtime.hosts.client.relocation import relocate
from pathways.runtime.hosts.cluster.host import HostGang, Location
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.protocol.host_facts import HostFacts
from pathways.runtime.hosts.protocol.interrupts import uninterrupted
from pathways.runtime.hosts.protocol.programs import SlicePlace
from pathways.runtime.hosts.splitting.splitting import SplitError
from pathways.runtime.local.load import Executable
from pathways.runtime.local.memory import MemoryAnalysis, analyze
from pathways.runtime.resources.manager import Binding
from pathways.runtime.resources.virtual import VirtualSlice

ARRAYS = (Array, jax.Array)
"""Types of arguments that can be deleted."""


class HostsExecutable(ProgramExecutable):
    """Program of one signature on its hosts; the counterpart of `LocalExecutable`.

    Args:
      loader: loads it.
      bindings: the devices of each of its slices.
      interface: its arguments, results and slices.

    Raises:
      ProgramError: the program cannot be split by islands.
      HostError: a host was lost, or cannot compile its program.
    """

    _arrays = ARRAYS

    def __init__(
        self,
        loader: ProgramLoader,
        bindings: Mapping[str, Binding],
        interface: Interface,
        signature: Signature,
    ) -> None:
        super().__init__(loader.plan, interface, signature)
        self.context = signature.context
        self._loader = loader
        self._session = loader.session
        # Which of its executables runs depends on the homes of arguments, see `is_at_home`.
        self._homes = interface.homes
        self._alive = list(interface.slices.values())
        self._bindings = dict(bindings)
        program = self._load()
        with self._session.order:
            # Slices may have moved to another island while the program was loaded.
            while self._has_moved():
                self._session.unload(program)
                program = self._load()
            self._use(program)
            self._session.programs.add(self)

    def _has_moved(self) -> bool:
        """Returns whether slices have other devices now, and notes these."""
        before, self._bindings = self._bindings, bind_slices(self.interface, self.plan)
        return before != self._bindings

    def _load(self) -> HostedProgram:
        """Loads the program for the devices of its slices."""
        while True:
            try:
                return self._load_there()
            except HostError:
                if not self._has_moved():
                    raise

    def _load_there(self) -> HostedProgram:
        try:
            return self._loader.load({name: SlicePlace.of(each) for name, each in self._bindings.items()})
        except SplitError as error:
            raise ProgramError(str(error)) from None

    def _use(self, program: HostedProgram) -> None:
        """Makes calls run a loaded program."""
        self._program = program
        count = len(self._signature.avals)
        # The location that each argument must have; for each host program, its arguments and their locations.
        self._locations: list[list[Location]] = [[] for _ in range(count)]
        for ports in program.inputs.values():
            for port in ports:
                self._locations[port.number].append(port.location)
        self._inputs = {
            island: [(port.number, port.location) for port in ports]
            for island, ports in program.inputs.items()
        }
        # The location of each result, and its index among the results of its host program.
        self._results: list[list[tuple[Location, int]]] = [[] for _ in self.interface.out_avals]
        for ports in program.outputs.values():
            for position, port in enumerate(ports):
                self._results[port.number].append((port.location, position))
        # The arguments of the last call: a handle with the same aval needs no other check.
        self._avals: list[Any] = [None] * count
        self._unload = weakref.finalize(self, self._session.unload, program)
        self._unload.atexit = False

    def runs_on(self, gang: HostGang) -> bool:
        """See `MovableProgram`."""
        return gang in self._program.gangs

    def load_for(self, bindings: Mapping[VirtualSlice, Binding]) -> Callable[[], None] | None:
        """See `MovableProgram`."""
        new = {
            name: bindings.get(slice, self._bindings[name]) for name, slice in self.interface.slices.items()
        }
        if new == self._bindings:
            return None
        places = {name: SlicePlace.of(binding) for name, binding in new.items()}
        program = self._loader.load(places)

        def use() -> None:
            unload.detach()
            self._unload()
            self._bindings = new
            self._use(program)

        # If it is not used: a program that moves with it cannot be compiled, for example.
        unload = weakref.finalize(use, self._session.unload, program)
        unload.atexit = False
        return use

    @property
    @override
    def is_lost(self) -> bool:
        return not self._program.is_ready()

    @property
    @override
    def is_restorable(self) -> bool:
        return not self._session.is_closed

    @override
    def load_again(self) -> HostsExecutable:
        bindings = bind_slices(self.interface, self.plan)
        return HostsExecutable(self._loader, bindings, self.interface, self._signature)

    @property
    def loaded(self) -> Executable:  # type: ignore[override]
        """No executable: the hosts have the program's.

        Raises:
          RuntimeError: always.
        """
        raise RuntimeError(f"program '{self.name}' runs on hosts, which keep their compiled modules")

    @property
    @override
    def step_deadline(self) -> float | None:
        return self._session.step_deadline

    @property
    def argument_shardings(self) -> list[Any]:
        """None for each argument: hosts have no shardings of this process."""
        return [None] * len(self._locations)

    @property
    def result_shardings(self) -> list[Any]:
        """None for each result: hosts have no shardings of this process."""
        return [None] * len(self.interface.out_avals)

    @override
    def result_types(self) -> list[Any]:
        return [
            PlacedType(aval, self._session, [location for location, _ in places])
            for aval, places in zip(self.interface.out_avals, self._results, strict=True)
        ]

    @override
    def argument_types(self, numbers: Sequence[int]) -> list[Any]:
        avals = self._signature.avals
        return [PlacedType(avals[n], self._session, self._locations[n]) for n in numbers]

    def memory_analysis(self) -> MemoryAnalysis:
        """Returns the memory that one call needs on each slice.

        Raises:
          HostError: a host was lost.
        """
        # A slice without a host program has no entry.
        return MemoryAnalysis({**analyze(self.plan, {}), **self._facts.memory})

    def flops(self, computation: str, slice: str) -> float:
        """Returns the floating-point operations of one launch on a slice, on all its devices.

        Raises:
          HostError: a host was lost.
        """
        return self._facts.flops[computation, slice]

    def device_text(self) -> str:
        """Returns XLA's optimized module of each computation on each slice.

        Raises:
          HostError: a host was lost.
        """
        return self._session.describe(self._program, text=True).text

    @functools.cached_property
    def _facts(self) -> HostFacts:
        return self._session.describe(self._program)

    @override
    def try_fast_path(self, leaves: list[Any]) -> Any:
        if self._homes:
            return CACHE_MISS
        for life in self._program.lives:
            if life.problem is not None:
                return CACHE_MISS
        for leaf, aval in zip(leaves, self._avals, strict=True):
            # A deleted array has no copies.
            if type(leaf) is not Array or leaf.aval is not aval or not leaf.copies:
                return CACHE_MISS
        for inputs in self._inputs.values():
            for n, location in inputs:
                if location not in leaves[n].copies:
                    return CACHE_MISS
        if self._donated and len(set(map(id, leaves))) != len(leaves):
            return CACHE_MISS
        return self.execute(leaves)

    def transfer_arguments(self, leaves: list[Any]) -> list[Array] | None:
        """Transfers arguments to their hosts; returns None if they have another signature."""
        for n, (leaf, last) in enumerate(zip(leaves, self._avals, strict=True)):
            if last is not None and getattr(leaf, "aval", None) is last:
                continue
            if is_type(leaf):
                return None
            try:
                aval = jax_internals.abstractify(leaf)
                if not self._signature.takes(n, leaf, aval):
                    return None
            except (TypeError, ValueError, OverflowError):
                return None
            if isinstance(leaf, Array):
                self._avals[n] = aval
        self._check_donated(leaves)
        placed = list(self._put(dict(enumerate(leaves))).values())
        for n in self._donated:
            # The program has a copy of it, which is freed with the call.
            if leaves[n] is not placed[n] and isinstance(leaves[n], ARRAYS):
                leaves[n].delete()
        return placed

    @override
    def put_arguments(self, leaves: Mapping[int, Any], *, copy: bool) -> dict[int, Any]:
        if copy:
            for n, leaf in leaves.items():
                self.check(n, leaf)
        return self._put(leaves, apart=copy)

    def execute(self, leaves: Sequence[Array]) -> Any:
        """Runs the plan on arguments that are on their slices."""
        while (results := self._issue(leaves)) is CACHE_MISS:
            # Its slices have moved to another island since.
            leaves = [*self._put(dict(enumerate(leaves))).values()]
        return results

    def _issue(self, leaves: Sequence[Array]) -> Any:
        """Runs the plan as `execute`; returns `CACHE_MISS` if an argument is elsewhere."""
        session = self._session
        # Another thread may donate them, too: before this call, which is an error, or after it.
        with session.pool.order:
            program = self._program
            arguments: dict[int, list[int]] = {}
            producers: list[Step | None] = []
            for island, inputs in self._inputs.items():
                arguments[island] = numbers = []
                for n, location in inputs:
                    array = leaves[n]
                    number = array.copies.get(location)
                    if number is None:
                        array.check_alive()
                        return CACHE_MISS
                    numbers.append(number)
                    producers.append(array.steps.get(numbers[-1], array.step))
            session.wait_for_room(program)
            # Without a handle nothing would free a result.
            with uninterrupted():
                step = session.issue(program, arguments, producers)
                for n in self._donated:
                    leaves[n].delete()
                results = results_of(session, step, self.interface.out_avals, self._results)
        return self.interface.out_tree.unflatten(results)

    def _put(self, leaves: Mapping[int, Any], *, apart: bool = False) -> dict[int, Array]:
        """Brings arguments as `_bring`, again where the slices have moved to another island meanwhile."""
        while True:
            locations = self._locations
            try:
                return self._bring(leaves, apart=apart)
            except HostError:
                if locations is self._locations:
                    raise

    def _bring(self, leaves: Mapping[int, Any], *, apart: bool) -> dict[int, Array]:
        """Returns arguments on the hosts that read them; arrays that are there already are not sent.

        Args:
          apart: whether copies are freed independently of the arrays that they were copied from.
        """
        arrays = {n: self._on_hosts(n, leaf) for n, leaf in leaves.items()}
        placed = {n: self._apart(n, array) for n, array in arrays.items()} if apart else arrays
        missing = [
            (n, location)
            for n, array in placed.items()
            for location in self._locations[n]
            if not array.is_at(location)
        ]
        elsewhere = [(arrays[n], placed[n], location) for n, location in missing if arrays[n].locations]
        if elsewhere:
            relocate(self._session, elsewhere)
        # Through this process: its own values, and arrays whose required block no live host has.
        for n, location in missing:
            array = placed[n]
            if not array.is_at(location):
                value = _value(leaves[n], self._signature.avals[n])
                array.put(location, value)
        return placed

    def _apart(self, n: int, array: Array) -> Array:
        """Returns a handle for the copies of an argument; its own if no copy is needed."""
        # If slices share devices, the copy may be another program's buffer, which it may donate later.
        is_shared = any(slice.overlap for slice in self._alive)
        if array.locations and (is_shared or not all(map(array.is_at, self._locations[n]))):
            return Array(self._session, array.aval)
        return array

    def _on_hosts(self, n: int, leaf: Any) -> Array:
        """Returns the handle of an argument, or a new one without locations."""
        aval = self._signature.avals[n]
        if isinstance(leaf, ARRAYS) and leaf.is_deleted():
            raise RuntimeError(
                f"program '{self.name}': argument {self.paths[n]} has been deleted, with type "
                f"{describe(aval)}; it was donated to an earlier call"
            )
        if isinstance(leaf, Array) and leaf.is_of(self._session):
            return leaf
        return Array(self._session, aval)


def _value(leaf: Any, aval: Any) -> np.ndarray[Any, Any]:
    """Returns an argument as the host gets it; typed PRNG keys as their data."""
    if isinstance(leaf, Array):
        return leaf.fetch()
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
        return np.asarray(jax_internals.key_data(leaf))
    return np.asarray(leaf, aval.dtype)

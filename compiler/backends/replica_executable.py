"""Program on slices with replicas: an executable for each choice of replicas that it was loaded for."""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, override

from pathways.compiler.backends.executable import ProgramExecutable
from pathways.runtime.local.devices import process_cluster
from pathways.runtime.local.load import Executable
from pathways.runtime.local.memory import MemoryAnalysis
from pathways.runtime.resources.virtual import VirtualDeviceSet, VirtualSlice
from pathways.runtime.xla.compile_cache import Request

_programs: weakref.WeakSet[ReplicaExecutable] = weakref.WeakSet()
_lock = threading.Lock()
"""Held while programs are added and listed, by any thread."""
_number_of_last = 0


class ReplicaLoader(Protocol):
    """Loader of a program for some of its replicas."""

    def microbatches(self) -> tuple[int, ...]:
        """Returns the number of microbatches of each loop."""

    def load(self, running: tuple[int, ...]) -> ProgramExecutable:
        """Loads the program on the slices of some replicas."""


class ReplicaExecutable(ProgramExecutable):
    """Program of one signature, on the slices of the replicas that run.

    Args:
      slices: its slices, of the first replica.

    Attributes:
      number: the number of such programs that the process loaded up to this one.
      slices: its slices, of the first replica.
      holds_lost: whether calls on hosts that are lost are errors until it runs on others; else they compile
        it again, which waits until the hosts are back.
    """

    def __init__(
        self, executable: ProgramExecutable, loader: ReplicaLoader, slices: Collection[VirtualSlice]
    ) -> None:
        super().__init__(executable.plan, executable.interface, executable._signature)
        self.slices = tuple(slices)
        self.device_sets = frozenset(virtual.device_set for virtual in slices)
        self._loader = loader
        self._running = executable
        self._loaded = {self.slices[0].device_set.running: executable}
        self.holds_lost = False
        # For each choice of replicas a lock that is held while it is loaded: meanwhile steps continue, and
        # may need another choice, while the loader waits for hosts of this one.
        self._loading: dict[tuple[int, ...], threading.Lock] = collections.defaultdict(threading.Lock)
        global _number_of_last
        with _lock:
            _number_of_last += 1
            self.number = _number_of_last
            _programs.add(self)

    @property
    def microbatches(self) -> tuple[int, ...]:
        """The number of microbatches of each loop."""
        return self._loader.microbatches()

    def load_for(self, replicas: tuple[int, ...]) -> ProgramExecutable:
        """Returns the executable on some replicas, and loads it if it is not.

        Raises:
          ProgramError: the program cannot be compiled for so many replicas.
          ResourceError: the devices have too little memory.
          HostError: a host was lost.
        """
        with self._loading[replicas]:
            loaded = self._loaded.get(replicas)
            if loaded is None or loaded.is_lost:
                is_restorable = loaded is not None and loaded.is_restorable
                loaded = loaded.load_again() if loaded and is_restorable else self._loader.load(replicas)
                self._loaded[replicas] = loaded
        return loaded

    def run_on(self, replicas: tuple[int, ...]) -> None:
        """Makes all calls from now on run on some replicas; see `load_for`."""
        self._running = self.load_for(replicas)
        self.plan, self.interface = self._running.plan, self._running.interface

    @property
    def context(self) -> Any:
        """The JAX settings it was traced under; None once its devices were disconnected."""
        return self._running.context

    @property
    @override
    def is_lost(self) -> bool:
        return self._running.is_lost and not self.holds_lost

    @property
    @override
    def is_restorable(self) -> bool:
        return self._running.is_restorable

    @override
    def load_again(self) -> ReplicaExecutable:
        self.run_on(self.slices[0].device_set.running)
        return self

    @property
    def loaded(self) -> Executable:  # type: ignore[override]
        """The loaded executable."""
        return self._running.loaded

    @property
    def argument_shardings(self) -> list[Any]:
        """The placement of each argument on the first of its slices; None for one that nothing reads."""
        return self._running.argument_shardings

    @property
    def result_shardings(self) -> list[Any]:
        """The placement of each result on the first of its slices."""
        return self._running.result_shardings

    @override
    def result_types(self) -> list[Any]:
        return self._running.result_types()

    @override
    def argument_types(self, numbers: Sequence[int]) -> list[Any]:
        return self._running.argument_types(numbers)

    def memory_analysis(self) -> MemoryAnalysis:
        """Returns the memory that one call needs on each slice."""
        return self._running.memory_analysis()

    def flops(self, computation: str, slice: str) -> float:
        """Returns the floating-point operations of one launch on a slice, on all its devices."""
        return self._running.flops(computation, slice)

    @property
    @override
    def step_deadline(self) -> float | None:
        return self._running.step_deadline

    @override
    def requests(self) -> Mapping[str, Sequence[Request]]:
        return self._running.requests()

    def device_text(self) -> str:
        """Returns XLA's optimized module of each computation on each slice."""
        return self._running.device_text()

    def transfer_arguments(self, leaves: list[Any]) -> list[Any] | None:
        """Transfers arguments to their slices; returns None if they have another signature."""
        return self._running.transfer_arguments(leaves)

    @override
    def put_arguments(self, leaves: Mapping[int, Any], *, copy: bool) -> dict[int, Any]:
        return self._running.put_arguments(leaves, copy=copy)

    def execute(self, leaves: list[Any]) -> Any:
        """Runs the plan on arguments that are on their slices."""
        return self._running.execute(leaves)

    def try_fast_path(self, leaves: list[Any]) -> Any:
        """Runs the plan if all arguments match the last call; returns `CACHE_MISS` otherwise."""
        return self._running.try_fast_path(leaves)


def _all_programs() -> list[ReplicaExecutable]:
    with _lock:
        return list(_programs)


def count_of_programs() -> int:
    """Returns how many such programs the process has loaded so far."""
    return _number_of_last


def programs_on(device_sets: Collection[VirtualDeviceSet]) -> list[ReplicaExecutable]:
    """Returns the programs on slices of some device sets, in the order in which they were loaded."""
    programs = [program for program in _all_programs() if not program.device_sets.isdisjoint(device_sets)]
    return sorted(programs, key=lambda program: program.number)


def run_on_replicas(device_sets: Collection[VirtualDeviceSet], replicas: tuple[int, ...]) -> None:
    """Makes all programs on slices of some device sets run on some replicas; loads them for these if needed.

    Raises:
      ProgramError: see `ReplicaExecutable.load_for`. All programs then run on the replicas that they ran on.
    """
    # All are loaded before the first is switched, so that an error leaves all as they were.
    programs = programs_on(device_sets)
    for program in programs:
        program.load_for(replicas)
    for device_set in device_sets:
        device_set.running = replicas
    for program in programs:
        program.run_on(replicas)


def _remove_all() -> None:
    """Removes all programs: they are compiled again for other devices, and for all replicas."""
    for program in _all_programs():
        for device_set in program.device_sets:
            device_set.running = tuple(range(device_set.replicas))
        program.holds_lost = False
    with _lock:
        _programs.clear()


process_cluster.on_disconnect(_remove_all)

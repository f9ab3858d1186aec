"""Replicas of a step: the choices of them that may run, and the programs loaded for each choice."""

from __future__ import annotations

import collections
import logging
import threading
from collections.abc import Callable, Collection, Mapping

import jax

from pathways.compiler.backends.executable import ProgramExecutable
from pathways.compiler.backends.replica_executable import (
    ReplicaExecutable,
    count_of_programs,
    programs_on,
    run_on_replicas,
)
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.local.devices import bind
from pathways.runtime.resilience.events import ReplicasPrepared, ResilienceEvent
from pathways.runtime.resources.manager import Binding
from pathways.runtime.resources.threads import RunningThread, start_thread
from pathways.runtime.resources.virtual import VirtualDeviceSet, VirtualSlice

Numbers = tuple[int, ...]
"""Numbers of replicas, ascending."""

log = logging.getLogger("pathways")


class StepReplicas:
    """Replicas of a step; fewer may run while islands are lost.

    All programs that share slices with the step run on the same replicas.

    Args:
      executables: the programs that read the batches.
      min_replicas: the smallest number of replicas that may run.

    Attributes:
      counts: the numbers of replicas that may run, ascending; the last one is the number of all replicas.
      running: the replicas that run.
      check: a function that raises an error if an island is lost, since loading would wait for it.

    Raises:
      ValueError: the step has no replicas or is from a bundle, no smaller number of replicas divides its
        microbatches, or each loss of an island leaves too few.
    """

    def __init__(self, executables: Collection[ProgramExecutable], min_replicas: int) -> None:
        programs = [executable for executable in executables if isinstance(executable, ReplicaExecutable)]
        if not programs:
            for executable in executables:
                if any(argument.replicas is not None for argument in executable.plan.arguments):
                    raise ValueError(
                        f"pw.resilient: min_replicas={min_replicas}: program '{executable.name}' is from a "
                        "bundle, which has it for all its replicas; pass the pw.program that was saved"
                    )
            raise ValueError(
                f"pw.resilient: min_replicas={min_replicas}: the step has no replicas; leave min_replicas out"
            )
        self._sets = _connected({device_set for program in programs for device_set in program.device_sets})
        count = next(iter(self._sets)).replicas
        self.counts = (*_fewer(programs, min_replicas, count), count)
        self.check: Callable[[Collection[int]], None] = lambda islands: None
        self.running = self.all
        self._bindings: Mapping[VirtualSlice, Binding] = {}
        self._programs_bound = 0
        islands: list[set[int]] = [set() for _ in self.all]
        for bound, binding in self.bindings.items():
            islands[bound.replica].add(int(binding.island.removeprefix("island")))
        self.islands = tuple(map(frozenset, islands))
        everywhere = frozenset().union(*self.islands)
        if not self.after_loss(everywhere):
            left = max(sum(lost not in of_replica for of_replica in self.islands) for lost in everywhere)
            raise ValueError(
                f"pw.resilient: min_replicas={min_replicas}: the replicas are on {len(everywhere)} of the "
                f"islands, and the loss of any one leaves {left} at most; connect to more islands, or leave "
                "min_replicas out"
            )
        self._programs_seen = 0
        self._x64 = jax.config.jax_enable_x64
        self._lock = threading.Lock()
        # Replicas to load the programs for, and whether the core waits for them.
        self._requests: collections.deque[tuple[Numbers, bool]] = collections.deque()
        self._events: list[ResilienceEvent] = []
        self._thread: RunningThread | None = None
        self._is_closed = False

    @property
    def bindings(self) -> Mapping[VirtualSlice, Binding]:
        """The devices of each slice of the step; the same object until there are new programs."""
        if self._programs_bound != count_of_programs():
            self._programs_bound = count_of_programs()
            self._sets = _connected(self._sets)
            bindings: dict[VirtualSlice, Binding] = {}
            # Separately: slices of different programs may share devices.
            for program in programs_on(self._sets):
                slices = [replica for slice in program.slices for replica in slice.replicas]
                bindings |= bind(slices, program=program.name)
            self._bindings = bindings
        return self._bindings

    @property
    def all(self) -> Numbers:
        """The numbers of all replicas."""
        return tuple(range(self.counts[-1]))

    def able(self, present: Collection[int]) -> Numbers:
        """Returns the replicas that can run on these islands; none if there are too few."""
        able = [n for n in self.all if self.islands[n] <= set(present)]
        # The core chooses: programs for any other choice would never run.
        return tuple(able[: max((count for count in self.counts if count <= len(able)), default=0)])

    def after_loss(self, present: Collection[int]) -> list[Numbers]:
        """Returns for the loss of each island that has workers the replicas that then run."""
        chosen = dict.fromkeys(self.able(set(present) - {lost}) for lost in sorted(present))
        return [replicas for replicas in chosen if replicas]

    def samples(self) -> list[Numbers]:
        """Returns choices of running replicas: for each number some, so that each replica is in one."""
        every = self.all
        return [
            tuple(sorted((every + every)[first : first + count]))
            for count in self.counts
            for first in (range(0, len(every), count) if count < len(every) else (0,))
        ]

    def load_new(self, present: Collection[int]) -> None:
        """Compiles programs that are new for fewer replicas.

        Loads the programs for the loss of the first island at once, and starts to load them for the loss of
        each other one.

        Raises:
          ProgramError: a program cannot be compiled for so many replicas.
          ResourceError: the devices have too little memory.
        """
        if self._programs_seen == count_of_programs():
            return
        self._programs_seen = count_of_programs()
        self._hold_lost(True)
        counts: set[int] = set()
        for replicas in self.after_loss(present):
            # Another choice of as many replicas differs in its devices alone.
            if len(replicas) not in counts:
                counts.add(len(replicas))
                try:
                    self._load(replicas)
                except HostError:
                    # The programs for the remaining islands are loaded when steps resume.
                    return
        self.load_ahead(present)

    def _load(self, replicas: Numbers) -> None:
        self._sets = _connected(self._sets)
        islands = frozenset().union(*(self.islands[number] for number in replicas))
        for program in programs_on(self._sets):
            self.check(islands)
            try:
                program.load_for(replicas)
            except Exception as error:
                error.add_note(
                    f"pw.resilient: while program '{program.name}' was loaded for {len(replicas)} of "
                    f"{self.counts[-1]} replicas, which min_replicas= allows"
                )
                raise

    def load_ahead(self, present: Collection[int]) -> None:
        """Starts to load all programs for the loss of any one island."""
        self._begin(False, self.after_loss(present))

    def prepare(self, replicas: Numbers) -> None:
        """Starts to load all programs for a choice of replicas; `poll` returns an event at the end."""
        self._begin(True, [replicas])

    def _begin(self, is_awaited: bool, requests: Collection[Numbers]) -> None:
        """Starts to load programs; replaces earlier requests of this kind that have not started."""
        with self._lock:
            rest = [request for request in self._requests if request[1] != is_awaited]
            # Requests that the core waits for come first.
            both = [*rest, *((replicas, is_awaited) for replicas in requests)]
            self._requests = collections.deque(sorted(both, key=lambda request: not request[1]))
            if self._thread is None:
                self._thread = start_thread(self._work, "replicas")

    def _work(self) -> None:
        while True:
            with self._lock:
                # Under the lock of `_begin`, which starts a new thread for later requests.
                if self._is_closed or not self._requests:
                    self._thread = None
                    return
                replicas, is_awaited = self._requests.popleft()
            try:
                # Settings of JAX belong to threads.
                with jax.enable_x64(self._x64):
                    self._load(replicas)
            except HostError:
                # The core sends a new request after it has handled the loss.
                continue
            except Exception as error:
                log.warning(
                    "pw.resilient: the step could not be loaded for replicas %s: %s: %s",
                    ", ".join(map(str, replicas)),
                    type(error).__name__,
                    error,
                )
                continue
            if is_awaited:
                with self._lock:
                    self._events.append(ReplicasPrepared(replicas))

    def run_on(self, replicas: Numbers) -> None:
        """Makes all programs run on these replicas from now on.

        Raises:
          ProgramError: a program cannot be compiled for so many replicas.
        """
        self._sets = _connected(self._sets)
        self._hold_lost(True)
        run_on_replicas(self._sets, replicas)
        self.running = replicas

    def _hold_lost(self, value: bool) -> None:
        for program in programs_on(self._sets):
            program.holds_lost = value

    def poll(self) -> list[ResilienceEvent]:
        """Returns the events since the last call."""
        with self._lock:
            events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Waits for the request in progress and drops all others."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        # Outside of the lock, which the thread needs to finish.
        if thread is not None:
            thread.join()
        self._hold_lost(False)


def _fewer(programs: Collection[ReplicaExecutable], min_replicas: int, count: int) -> list[int]:
    """Returns the numbers of replicas below `count` that may run.

    Raises:
      ValueError: no such number exists.
    """
    microbatches = sorted({number for program in programs for number in program.microbatches})
    # The microbatches of each loop are divided evenly among replicas.
    fewer = [n for n in range(1, count) if all(number % n == 0 for number in microbatches)]
    allowed = [n for n in fewer if n >= min_replicas]
    if not allowed:
        named = ", ".join(map(str, fewer))
        of_what = f" of {' and '.join(map(str, microbatches))} microbatches" if microbatches else ""
        raise ValueError(
            f"pw.resilient: min_replicas={min_replicas}: the step has {count} replicas{of_what}, which "
            f"divide among {named} of them; pass one of these numbers"
        )
    return allowed


def _connected(device_sets: Collection[VirtualDeviceSet]) -> frozenset[VirtualDeviceSet]:
    """Returns device sets and all others that some program uses together with one of them."""
    connected = frozenset(device_sets)
    while True:
        more = connected.union(*(program.device_sets for program in programs_on(connected)))
        if more == connected:
            return connected
        connected = more

"""Replicas of the programs of a step: which of them may run, and the loading of the programs for them."""

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

    All programs on the slices of the step's programs run on the same replicas.

    Args:
      executables: the programs that read the batches.
      min_replicas: the smallest number of replicas that may run.

    Attributes:
      counts: the numbers of replicas that may run, ascending; the last is all.
      running: the replicas that programs run on.
      check: a function that raises an error if one of some islands is lost: loading on it would wait for it.

    Raises:
      ValueError: the step has no replicas, or no smaller number of them divides its microbatches, or it is
        from a bundle, or each loss of an island leaves fewer.
    """

    def __init__(self, executables: Collection[ProgramExecutable], min_replicas: int) -> None:
        programs = [one for one in executables if isinstance(one, ReplicaExecutable)]
        if not programs:
            for one in executables:
                if any(argument.replicas is not None for argument in one.plan.arguments):
                    raise ValueError(
                        f"pw.resilient: min_replicas={min_replicas}: program '{one.name}' is from a bundle, "
                        "which has it for all its replicas; pass the pw.program that it was saved from"
                    )
            raise ValueError(
                f"pw.resilient: min_replicas={min_replicas}: the step has no replicas; leave min_replicas out"
            )
        self._sets = _connected({one for program in programs for one in program.device_sets})
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
            left = max(sum(lost not in own for own in self.islands) for lost in everywhere)
            raise ValueError(
                f"pw.resilient: min_replicas={min_replicas}: the replicas are on {len(everywhere)} of the "
                f"islands, and the loss of any one leaves {left} at most; connect to more islands, or leave "
                "min_replicas out"
            )
        self._programs_seen = 0
        self._x64 = jax.config.jax_enable_x64
        self._lock = threading.Lock()
        # Replicas to load the programs for, and whether the core waits for that.
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
            # One by one: slices of several programs may share devices.
            for program in programs_on(self._sets):
                slices = [replica for one in program.slices for replica in one.replicas]
                bindings |= bind(slices, program=program.name)
            self._bindings = bindings
        return self._bindings

    @property
    def all(self) -> Numbers:
        """The numbers of all replicas."""
        return tuple(range(self.counts[-1]))

    def able(self, present: Collection[int]) -> Numbers:
        """Returns the replicas that may run on some islands: none if they are too few."""
        able = [n for n in self.all if self.islands[n] <= set(present)]
        # The choice of the core: other replicas would be loaded in vain.
        return tuple(able[: max((count for count in self.counts if count <= len(able)), default=0)])

    def after_loss(self, present: Collection[int]) -> list[Numbers]:
        """Returns the replicas that run after the loss of any one of the islands that have workers."""
        chosen = dict.fromkeys(self.able(set(present) - {lost}) for lost in sorted(present))
        return [replicas for replicas in chosen if replicas]

    def samples(self) -> list[Numbers]:
        """Returns choices of replicas that run: of each number some, so that each replica is in one."""
        every = self.all
        return [
            tuple(sorted((every + every)[first : first + count]))
            for count in self.counts
            for first in (range(0, len(every), count) if count < len(every) else (0,))
        ]

    def load_new(self, present: Collection[int]) -> None:
        """Compiles programs that are new for fewer replicas.

        They are loaded for those that run after the loss of a first island at once, and begin to be loaded
        for the losses of others.

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
            # As many other ones differ by their devices alone.
            if len(replicas) not in counts:
                counts.add(len(replicas))
                try:
                    self._load(replicas)
                except HostError:
                    # The programs for the islands that are left are loaded when steps resume.
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
        """Begins to load all programs for the replicas that run after the loss of any one island."""
        self._begin(False, self.after_loss(present))

    def prepare(self, replicas: Numbers) -> None:
        """Begins to load all programs for some replicas; `poll` returns that they are."""
        self._begin(True, [replicas])

    def _begin(self, is_awaited: bool, requests: Collection[Numbers]) -> None:
        """Begins to load programs, in place of what earlier requests of the kind have not begun to load."""
        with self._lock:
            kept = [one for one in self._requests if one[1] != is_awaited]
            # Those that the core waits for come first.
            both = [*kept, *((replicas, is_awaited) for replicas in requests)]
            self._requests = collections.deque(sorted(both, key=lambda one: not one[1]))
            if self._thread is None:
                self._thread = start_thread(self._work, "replicas")

    def _work(self) -> None:
        while True:
            with self._lock:
                # Under the lock of `_begin`, which starts a new thread for requests that come after this.
                if self._is_closed or not self._requests:
                    self._thread = None
                    return
                replicas, is_awaited = self._requests.popleft()
            try:
                # Settings of JAX belong to threads.
                with jax.enable_x64(self._x64):
                    self._load(replicas)
            except HostError:
                # After the loss is handled, programs are loaded anew.
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
        """Makes all programs run on some replicas from now on.

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
        """Waits for what is being loaded, and loads no more."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        # Without the lock, which the thread needs to finish.
        if thread is not None:
            thread.join()
        self._hold_lost(False)


def _fewer(programs: Collection[ReplicaExecutable], min_replicas: int, count: int) -> list[int]:
    """Returns the smaller numbers of replicas that may run.

    Raises:
      ValueError: there is none.
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
    """Returns device sets, and those of slices that programs use together with theirs."""
    found = frozenset(device_sets)
    while True:
        more = found.union(*(program.device_sets for program in programs_on(found)))
        if more == found:
            return found
        found = more

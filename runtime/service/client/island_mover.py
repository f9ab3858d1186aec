"""Move of a client off an island that is drained: its slices, programs and arrays, while its steps continue.

Programs are compiled for the new devices, and arrays are copied, beside the steps. Then, between two steps,
slices and programs are switched, and arrays that are new since are copied. A copy on the island is freed
when the new copy is ready, so that nothing is lost if a move fails.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import msgspec

from pathways.dialect.errors import PathwaysError
from pathways.runtime.control.records.errors import Failure, HostError
from pathways.runtime.control.records.events import GangKey
from pathways.runtime.hosts.client.array import Array
from pathways.runtime.hosts.client.host_session import MovableProgram
from pathways.runtime.hosts.client.relocation import relocate
from pathways.runtime.hosts.cluster.host import HostGang, Location
from pathways.runtime.hosts.cluster.worker_pool import WorkerPool
from pathways.runtime.resources.manager import Binding
from pathways.runtime.resources.threads import start_thread
from pathways.runtime.resources.virtual import VirtualSlice, make_virtual_device_set
from pathways.runtime.service.client.device_allocator import DeviceAllocator
from pathways.runtime.service.client.remote_session import RemoteSession
from pathways.runtime.service.protocol.service_messages import (
    MAX_REASON_CHARS,
    IslandDrainingNotice,
    MoveReport,
    printable,
)

_POLL_SECONDS = 0.02
_MAX_POLL_SECONDS = 0.2
_RETRY_SECONDS = 0.5
_MAX_RETRY_SECONDS = 8.0

log = logging.getLogger("pathways")


def move_when_drained(session: RemoteSession) -> None:
    """Moves a session off islands when they are drained, off one after the other."""
    switching = threading.Lock()

    def begin(notice: IslandDrainingNotice) -> None:
        gang, slices = session.pool.get(GangKey(notice.island, notice.start)), session.slices
        # Without slices this client has nothing there, and gets nothing.
        if gang is not None and slices is not None:
            start_thread(IslandMover(session, slices, gang, notice, switching).run, "move")

    session.on_drain(begin)


class IslandMover:
    """Mover off the workers of an island.

    Args:
      slices: the devices of the slices of the client.
      gang: these workers.
      notice: the notice of the service, with the devices of slices that can move.
      switching: the lock that is held while programs are compiled for other devices, and switched.
    """

    def __init__(
        self,
        session: RemoteSession,
        slices: DeviceAllocator,
        gang: HostGang,
        notice: IslandDrainingNotice,
        switching: threading.Lock,
    ) -> None:
        self._session = session
        self._slices = slices
        self._gang = gang
        self._why: Failure = notice.why.failure()
        self._positions = notice.moves
        self._targets = ArrayTargets(session.pool, slices, gang, {})
        self._switching = switching
        self._has_switched = False
        # Arrays whose values are errors, and which stay: by their numbers.
        self._failed: set[int] = set()

    def run(self) -> None:
        """Moves until nothing is left on the island, or it has left."""
        problem, pause = "", _RETRY_SECONDS
        while not self._is_over():
            try:
                with self._switching:
                    self._switch()
                self._leave()
                return
            except Exception as error:
                if str(error) != problem and not self._is_over():
                    problem = str(error)
                    # Unexpected errors, too: the island leaves in any case.
                    trace = None if isinstance(error, PathwaysError) else error
                    log.warning(
                        "cannot move off %s, which is drained: %s", self._gang.name, problem, exc_info=trace
                    )
                    self._report(why=problem.partition("\n")[0])
                time.sleep(pause)
                pause = min(2 * pause, _MAX_RETRY_SECONDS)

    def _is_over(self) -> bool:
        return self._session.is_closed or self._gang.is_lost()

    def _switch(self) -> None:
        """Moves slices and programs to other devices, and begins to copy the arrays there."""
        if self._has_switched:
            return
        session = self._session
        bindings = self._bindings()
        self._targets = ArrayTargets(session.pool, self._slices, self._gang, bindings)
        loaded: dict[MovableProgram, Callable[[], None] | None] = {}
        while True:
            for program in self._programs():
                if program not in loaded:
                    loaded[program] = program.load_for(bindings)
            self._copy_ahead()
            with session.order:
                if all(program in loaded for program in self._programs()):
                    session.move_slices(
                        {slice.number: binding.positions for slice, binding in bindings.items()}
                    )
                    self._slices.move(bindings)
                    for use in loaded.values():
                        if use is not None:
                            use()
                    self._has_switched = True
                    self._copy_arrays()
                    return

    def _bindings(self) -> dict[VirtualSlice, Binding]:
        """Returns the new devices of the slices that move now."""
        bindings = self._slices.bindings_of(self._positions)
        if self._session.is_leave_delayed(self._gang):
            # Training continues with fewer replicas by itself.
            return {slice: each for slice, each in bindings.items() if slice.device_set.replicas == 1}
        return bindings

    def _programs(self) -> list[MovableProgram]:
        # Programs are added with the lock.
        with self._session.order:
            return [program for program in self._session.programs if program.runs_on(self._gang)]

    def _arrays(self) -> Iterator[tuple[Array, Location]]:
        """Yields the arrays on the island whose values are not errors, each with its location there."""
        gang = self._gang
        for pending in (gang.life.unused, *list(gang.unused.values())):
            for holder, number in pending.holders():
                if isinstance(holder, Array) and number not in self._failed:
                    for location, copy_number in list(holder.copies.items()):
                        if copy_number == number and location.gang is gang:
                            yield holder, location

    def _copy_ahead(self) -> None:
        """Copies the arrays that are on the island now, while steps continue.

        Afterwards the programs that copy them are loaded, idle arrays need no copy, and there is memory.

        Raises:
          HostError: an array cannot be copied; all are where they were.
        """
        copied = []
        for array, location in list(self._arrays()):
            with self._session.order:
                if array.is_at(location) and (target := self._copy(array, location)) is not None:
                    copied.append((array, location, target))
        try:
            self._await_copies(copied, frees=False)
        except HostError:
            with self._session.order:
                for array, _, target in copied:
                    array.drop_copy(target)
            raise

    def _copy_arrays(self) -> list[tuple[Array, Location, Location]]:
        """Begins to copy all arrays on the island; returns each with its old and new location.

        The caller holds `order`, so that no step comes between the copies.
        """
        copied = []
        for array, location in list(self._arrays()):
            if (target := self._copy(array, location)) is not None:
                # The next reader finds it there, and so does a slice by its devices.
                array.prefer(target)
                copied.append((array, location, target))
        return copied

    def _copy(self, array: Array, location: Location) -> Location | None:
        """Begins to copy an array, unless there is a copy; returns its new location, None if it stays.

        The caller holds `order`.
        """
        target = self._targets.of(location)
        if target is None or array.is_at(target):
            return target
        try:
            return None if relocate(self._session, [(array, array, target)]) else target
        except HostError:
            if self._gang.is_lost() or target.gang.life.problem is not None:
                raise
            # The step failed that computes it, whose error readers get from here on, too.
            self._failed.add(array.copies[location])
            location.unused.add(array.copies[location])
            return None

    def _leave(self) -> None:
        """Moves the rest until the island has nothing of this client, and reports it.

        Raises:
          HostError: an array cannot be moved.
        """
        session, gang = self._session, self._gang
        has_reported, is_empty, pause = False, False, _POLL_SECONDS
        while not self._is_over():
            with session.order:
                copied = self._copy_arrays()
                is_empty = not copied and not self._keeps_something()
                if is_empty and not session.is_leave_delayed(gang):
                    # In the lock: a step that another thread issues now is refused.
                    session.close_island(gang.life.key, self._why)
                    break
            self._await_copies(copied, frees=True)
            if copied:
                continue
            if session.is_leave_delayed(gang):
                if is_empty:
                    session.used.discard(gang.number)
                if not has_reported:
                    has_reported = True
                    session.note_moved(gang.life.key, self._why)
            elif has_reported:
                # Training has a version of the rest elsewhere.
                session.close_island(gang.life.key, self._why)
                break
            time.sleep(pause)
            pause = min(2 * pause, _MAX_POLL_SECONDS)
        if is_empty:
            session.used.discard(gang.number)
        self._report(is_over=True)

    def _keeps_something(self) -> bool:
        """Returns whether slices, programs or arrays stay, or are about to be on the island."""
        return (
            any(binding.island == self._gang.name for binding in self._slices.holders().values())
            or any(gang is self._gang for gang, _ in list(self._session.puts))
            or bool(self._programs())
            or next(self._arrays(), None) is not None
        )

    def _await_copies(self, copied: list[tuple[Array, Location, Location]], *, frees: bool) -> None:
        """Waits for copies, and frees the ones on the island that have another one now if `frees`.

        Raises:
          HostError: an array could not be copied; it is where it was.
        """
        session = self._session
        for array, location, target in copied:
            number, step = array.copies.get(target), array.step_at(target)
            # Otherwise it was deleted or donated meanwhile.
            if number is None:
                continue
            try:
                if step is not None:
                    session.wait_for_step(step, target, number)
            except HostError:
                if array.is_deleted():
                    continue
                with session.order:
                    is_spoiled = _has_failed(array, location)
                    array.drop_copy(location if is_spoiled else target)
                if not is_spoiled:
                    raise
                continue
            if frees:
                with session.order:
                    array.drop_copy(location)

    def _report(self, *, is_over: bool = False, why: str = "") -> None:
        self._session.report_move(MoveReport(*self._gang.life.key, is_over, printable(why, MAX_REASON_CHARS)))


class ArrayTargets:
    """Locations to which arrays on an island move.

    Args:
      slices: the devices of the slices of the client.
      gang: the workers of the island.
      moving: the new devices of the slices that move.
    """

    def __init__(
        self,
        pool: WorkerPool,
        slices: DeviceAllocator,
        gang: HostGang,
        moving: Mapping[VirtualSlice, Binding],
    ) -> None:
        self._pool = pool
        self._slices = slices
        self._new_locations: dict[Location, Location] = {}
        # By the ids of the old devices of a slice its new ones; None for a slice that stays.
        self._moves: dict[tuple[int, ...], Binding | None] = {}
        for slice, binding in slices.holders().items():
            if binding.island == gang.name and (slice in moving or _ids(binding) not in self._moves):
                self._moves[_ids(binding)] = moving.get(slice)

    def of(self, location: Location) -> Location | None:
        """Returns the new location of arrays at a location; None if they stay there with their slice."""
        target = self._new_locations.get(location)
        # The workers there may be lost, and others have taken their place.
        if target is not None and not target.gang.is_lost():
            return target
        ids = location.placement.devices
        old = ids if ids in self._moves else next((o for o in self._moves if {*ids} <= {*o}), None)
        if old is None:
            # Its slice does not exist any more: a new one gets the devices.
            slice = make_virtual_device_set().add_slice(len(ids), "device")
            binding = self._slices.bind([slice], "moved arrays")[slice]
            new = dict(zip(ids, binding.devices, strict=True))
        else:
            if (moved := self._moves[old]) is None:
                return None
            binding = moved
            new = dict(zip(old, binding.devices, strict=True))
        gang = self._pool.gangs[int(binding.island.removeprefix("island"))]
        placement = msgspec.structs.replace(location.placement, devices=tuple(new[n].id for n in ids))
        target = self._new_locations[location] = gang.location(
            placement, location.block, is_private=location.is_private
        )
        return target


def _has_failed(array: Array, location: Location) -> bool:
    """Returns whether the value of an array is an error at a location."""
    step = array.step_at(location)
    try:
        if step is not None:
            step.check([host.index for host in location.holders], array.copies.get(location))
    except HostError:
        return True
    return False


def _ids(binding: Binding) -> tuple[int, ...]:
    return tuple(device.id for device in binding.devices)

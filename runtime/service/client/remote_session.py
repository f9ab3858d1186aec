"""Session with a service, which shares its workers among clients and orders their steps."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, override

import numpy as np

from pathways.runtime.control.effects import Effect, GangLeaving, Log, RequestReports
from pathways.runtime.control.records.errors import ClusterClosedError, Failure, HostError, lost
from pathways.runtime.control.records.events import GangClosed, GangKey, Tick
from pathways.runtime.control.records.pending_frees import PendingFrees
from pathways.runtime.control.records.step import SESSION_BITS, Step
from pathways.runtime.hosts.client.host_session import HostSession, ShardCutter
from pathways.runtime.hosts.cluster.host import HostGang, Location, WorkerHandle
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.cluster.shared_core import SharedCore, ignore
from pathways.runtime.hosts.cluster.worker_cluster import Split
from pathways.runtime.hosts.cluster.worker_pool import WorkerPool
from pathways.runtime.hosts.protocol.messages import Call, ForeignFacts, Ping, RequestReport, Unload
from pathways.runtime.hosts.protocol.programs import BoundProgram
from pathways.runtime.hosts.protocol.wire import ConnectionEnded
from pathways.runtime.resources.cluster import Cluster
from pathways.runtime.resources.manager import ResourceError, ResourceManager
from pathways.runtime.resources.status import SpareStatus
from pathways.runtime.resources.threads import start_thread
from pathways.runtime.resources.virtual import VirtualSlice
from pathways.runtime.service.client.cluster_mirror import SERVICE, ClusterMirror, IslandMoved, ServiceLost
from pathways.runtime.service.client.device_allocator import DeviceAllocator
from pathways.runtime.service.client.relayed import relayed_host
from pathways.runtime.service.client.service_listener import AttachedService, ServiceListener
from pathways.runtime.service.protocol.service_messages import (
    Admitted,
    ClientOrigin,
    Collected,
    DevicesBound,
    IslandDrainingNotice,
    IslandFacts,
    LoadForeignProgram,
    LoadProgram,
    MoveReport,
    MoveSlices,
    ProgramLoaded,
    ReleaseArrays,
    ReleaseDevices,
    RequestDevices,
    SliceRequest,
    Submit,
    SubmitCall,
)
from pathways.runtime.service.sharing.places import MAX_UNFINISHED

_TICK_SECONDS = 0.1
_FREE_SECONDS = 0.05

log = logging.getLogger("pathways")


class RemoteSession(HostSession):
    """Session of a client with a service.

    Args:
      admitted: its reply to this client, with its islands.
    """

    owns_workers = False

    def __init__(self, service: AttachedService, admitted: Admitted) -> None:
        self._service = service
        self._heartbeat = admitted.heartbeat
        # The service cancels steps, this process the loops that run them.
        self.step_deadline = admitted.step_deadline
        # The numbers of arrays that this client has put, until they are freed.
        self._sent: set[int] = set()
        self._slices: DeviceAllocator | None = None
        # The islands whose leaving is delayed, see `delay_leave`.
        self._delayed: set[GangKey] = set()
        self._releasing = threading.Lock()
        # From the removal of unused arrays from their list until the service has the message: otherwise it
        # could get `Collected` before.
        self._freeing = threading.Lock()
        facts = admitted.islands
        core = ClusterMirror(
            [(island.start, [host.host for host in island.hosts]) for island in facts],
            admitted.client << SESSION_BITS | 1,
            admitted.stall_report,
        )
        self._mirror = core
        shared = SharedCore(core)
        pool = WorkerPool([self._gang_of(number, island) for number, island in enumerate(facts)])
        self._listener = ServiceListener(shared, pool, service, self._gang_of)
        super().__init__(shared, pool, self._listener)
        # In a thread: the listener must continue, and finalizers may wait for its locks.
        self._listener.collect = functools.partial(start_thread, self._collect, "collect")
        self._listener.on_joined = self._extend_allocator
        shared.run_effect = self._run_effect
        self._unneeded: PendingFrees[HostedProgram] = PendingFrees()
        self._listener.start()
        start_thread(self._run_clock, "clock")
        start_thread(self._free_unused, "free")

    def send_origin(self, origin: ClientOrigin) -> None:
        """Notifies the service of the user, machine and process of this client, for its status.

        Raises:
          HostError: the service is disconnected.
        """
        self._send_to_service("steps", origin)

    @override
    def spares(self) -> SpareStatus | None:
        return self._service.spares

    def close(self) -> None:
        """Disconnects from the service, which frees all arrays and programs of this client."""
        if self._closed.is_set():
            return
        for observer in self.pool.observers:
            observer.close()
        self._closed.set()
        self._notify_closed("is closed")
        self._loop.remove(self._service.steps)
        self._service.close()
        self.pool.wake()
        self._loop.wake()
        self._loop.close()

    @override
    def leave(self) -> None:
        super().leave()
        self._loop.leave()
        self._core.reset_locks()
        self.pool.reset_locks()
        self._core.run_effect = ignore
        self._notify_closed("belongs to the process that this one was forked from")
        self._service.leave()

    def _notify_closed(self, ending: str) -> None:
        # Before the loss of the service, so that errors are the same as with workers of this process.
        self._core.handle(*(GangClosed(gang.key, ending) for gang in self._mirror.gangs))
        self._core.handle(ServiceLost(Failure(ClusterClosedError, f"{self._service} {ending}")))

    @override
    def load_foreign(
        self, name: str, hosts: Sequence[WorkerHandle], kind: str, body: bytes, about: int = 0
    ) -> tuple[int, list[ForeignFacts]]:
        # The service sends it to all hosts of the island.
        gang = hosts[0].gang
        message = functools.partial(LoadForeignProgram, island=gang.number, start=gang.life.key.start)
        loaded = self._request_load(
            [host.index for host in gang.hosts],
            lambda request: message(request, name=name, kind=kind, body=body, about=about),
        )
        return loaded.program, list(loaded.foreign)

    @override
    def _load(self, program: BoundProgram, split: Split) -> HostedProgram:
        # The service verifies and splits it.
        del split
        numbers = sorted({place.island for place in program.slices.values()})
        hosts = [host.index for gang in self.pool.current(numbers) for host in gang.hosts]
        loaded = self._request_load(hosts, lambda request: LoadProgram(request, program))
        gangs = [self.pool.gangs[number] for number in loaded.inputs]
        for gang in gangs:
            if gang.life.key != GangKey(gang.number, loaded.starts[gang.number]):
                gang.life.check_open()
                # Other workers have taken their place, which do not have the program.
                raise lost(f"{gang.name} was restarted while program '{program.name}' was loaded").error()
        return HostedProgram.of(
            loaded.program, program.name, gangs, loaded.inputs, loaded.outputs, loaded.share
        )

    def _request_load(
        self, hosts: Sequence[int], message: Callable[[int], LoadProgram | LoadForeignProgram]
    ) -> ProgramLoaded:
        """Requests the service to load a program on hosts.

        Raises:
          HostError: a host is lost, or cannot load it.
        """
        # To the hosts, though the service replies for all: the loss of any of them ends the request, too.
        request = self._core.request(hosts)
        try:
            self._send_to_service("watch", message(request.number))
            self._loop.wait(lambda: request.is_done() or bool(request.failures))
        finally:
            if not request.is_done():
                self._core.drop(request)
        for _, failure in request.first_failure():
            raise failure.error()
        loaded = request.answers[hosts[0]][-1]
        assert isinstance(loaded, ProgramLoaded)
        return loaded

    @override
    def unload(self, program: HostedProgram) -> None:
        self._unneeded.add(program)

    def delay_leave(self, workers: HostGang) -> None:
        """See `Session.delay_leave`; only for islands that are drained."""
        self._delayed.add(workers.life.key)

    def allow_leave(self, workers: HostGang) -> None:
        """See `Session.allow_leave`."""
        self._delayed.discard(workers.life.key)

    # Islands that are drained, see `IslandMover`.

    @property
    def slices(self) -> DeviceAllocator | None:
        """The devices of the slices of this client; None before `bind`."""
        return self._slices

    def on_drain(self, move: Callable[[IslandDrainingNotice], object]) -> None:
        """Sets the function that is called where an island will leave; it must not block."""
        self._listener.move = move

    def is_leave_delayed(self, workers: HostGang) -> bool:
        """Returns whether training delays the leaving of an island, until its state has a version."""
        return workers.life.key in self._delayed

    def note_moved(self, key: GangKey, why: Failure) -> None:
        """Notes that nothing of this client is on an island any more that could move."""
        self._core.handle(IslandMoved(key, why))
        self._loop.wake()

    def close_island(self, key: GangKey, why: Failure) -> None:
        """Refuses all requests of this client to an island from now on."""
        self._core.handle(GangLeaving(key, why))
        self._loop.wake()

    def report_move(self, report: MoveReport) -> None:
        """Reports the progress of a move off an island to the service."""
        with contextlib.suppress(HostError):
            # In the order of steps: none for the island follows the last report.
            self._send_to_service("steps", report)

    def bind(self, cluster: Cluster) -> ResourceManager[VirtualSlice]:
        """See `Session.bind`; the service knows the devices of other clients."""
        slices = self._slices = DeviceAllocator(cluster, self._request_devices)
        # An island may have joined since `cluster` was read.
        self._extend_allocator()
        return slices

    def _extend_allocator(self) -> None:
        """Gives the allocator the devices of islands that have joined."""
        if self._slices is not None:
            # Without its lock, which a thread holds that waits for these devices, see `_request_devices`.
            self._slices.cluster = self.cluster

    def move_slices(self, slices: Mapping[int, tuple[int, ...]]) -> None:
        """Binds slices to the devices that the service has planned for them; see `MoveSlices`.

        Raises:
          ResourceError: it has planned others meanwhile; no slice has moved.
          HostError: the service is disconnected.
        """
        self._bind_slices(lambda request: MoveSlices(request, dict(slices)))

    def _request_devices(self, program: str, slices: Sequence[SliceRequest]) -> Mapping[int, Sequence[int]]:
        """Requests devices of slices from the service; see `DeviceAllocator`."""
        return self._bind_slices(lambda request: RequestDevices(request, program, tuple(slices)))

    def _bind_slices(
        self, message: Callable[[int], RequestDevices | MoveSlices]
    ) -> Mapping[int, Sequence[int]]:
        """Sends a request for devices; returns their positions, by the numbers of slices."""
        request = self._core.request([SERVICE])
        try:
            if self._mirror.ended is not None:
                raise self._mirror.ended.error()
            self._send_released()
            self._send_to_service("watch", message(request.number))
        except BaseException:
            self._core.drop(request)
            raise
        self._core.wait_for(request)
        for _, failure in request.first_failure():
            raise failure.error()
        (bound,) = request.answers[SERVICE]
        assert isinstance(bound, DevicesBound)
        if bound.error:
            raise ResourceError(bound.error)
        last = max((position for positions in bound.positions.values() for position in positions), default=-1)
        allocator = self._slices
        assert allocator is not None
        # The notice of an island that has joined may come later, on another connection.
        self._loop.wait(lambda: last < len(allocator.cluster.devices) or self._mirror.ended is not None)
        if self._mirror.ended is not None:
            raise self._mirror.ended.error()
        return bound.positions

    def _send_released(self) -> None:
        """Notifies the service of slices that need no devices any more.

        Raises:
          HostError: the service is disconnected.
        """
        # One thread at a time, so that a release is sent before the request that binds the slice again.
        with self._releasing:
            if self._slices is not None and (released := self._slices.take_released()):
                self._send_to_service("watch", ReleaseDevices(released))

    @override
    def wait_for_room(self, program: HostedProgram) -> None:
        for life in program.lives:
            life.check_open()
        steps = self._mirror.steps
        if len(steps) >= MAX_UNFINISHED:
            began = steps.unfinished()[:1]
            self._loop.wait(lambda: len(steps) < MAX_UNFINISHED)
            if began:
                self.waits.add(time.monotonic() - began[0].began)
            for life in program.lives:
                life.check_open()

    @override
    def put_shards(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], location: Location, number: int, cut: ShardCutter
    ) -> None:
        self._sent.add(number)
        super().put_shards(shape, dtype, location, number, cut)

    def _cancel_put(self, location: Location, number: int) -> None:
        # Before: otherwise the service would wait for the rest of the array before it frees it.
        self._sent.discard(number)
        super()._cancel_put(location, number)

    @override
    def _send_step(self, step: Step, program: HostedProgram, arguments: Mapping[int, Sequence[int]]) -> None:
        consumed = {gang.number: tuple(arguments[gang.number]) for gang in program.gangs}
        try:
            with self._freeing:
                free = {
                    gang.number: unused for gang in program.gangs if (unused := gang.life.unused.take_all())
                }
                # Also of the arrays to free: the service frees each after its last byte has arrived.
                sent = self._sent_of([*consumed.values(), *free.values()])
                self._sent.difference_update(*free.values())
                self._service.steps.send(Submit(step.number, program.number, consumed, sent, free))
        except ConnectionEnded as error:
            self._listener.lose_service(error)

    def _sent_of(self, arrays: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Returns the numbers of the arrays that this client has put."""
        sent = self._sent
        return tuple({number for numbers in arrays for number in numbers if number in sent}) if sent else ()

    def _send_call(self, hosts: Sequence[WorkerHandle], call: Call) -> None:
        gang = hosts[0].gang
        sent = self._sent_of([[argument.array for argument in call.arrays]])
        numbers = tuple(host.index for host in hosts)
        submit = SubmitCall(gang.number, gang.life.key.start, numbers, call, sent)
        try:
            self._service.steps.send(submit)
        except ConnectionEnded as error:
            self._listener.lose_service(error)

    def _lose(self, host: WorkerHandle, error: ConnectionEnded) -> None:
        self._listener.lose_service(error)

    def _send_to_service(
        self,
        channel: str,
        message: ClientOrigin
        | RequestDevices
        | MoveSlices
        | ReleaseDevices
        | LoadProgram
        | LoadForeignProgram
        | ReleaseArrays
        | Collected
        | MoveReport
        | Unload
        | Ping,
    ) -> None:
        """Sends a message to the service.

        Raises:
          HostError: the service is disconnected.
        """
        try:
            self._service.connections[channel].send(message)
        except ConnectionEnded as error:
            self._listener.lose_service(error)
            for gang in self._mirror.gangs:
                gang.check()

    def _run_effect(self, effect: Effect) -> None:
        match effect:
            case Log():
                log.log(effect.level, "%s", effect.text)
            case RequestReports():
                for number in effect.hosts:
                    with contextlib.suppress(ConnectionEnded):
                        self.pool.hosts[number].watch.send(RequestReport(effect.request))

    def _gang_of(self, island: int, facts: IslandFacts) -> HostGang:
        life = self._mirror.gangs[island]
        name = f"island{island}"
        service, sent = self._service.connections, self._sent
        hosts = [relayed_host(host, name, facts.start, service, sent) for host in facts.hosts]
        return HostGang(life, hosts, facts.slices)

    def _run_clock(self) -> None:
        """Passes the time to the core and sends heartbeats to the service, until the session is closed."""
        now = time.monotonic()
        numbers, pinged = itertools.count(), -math.inf
        heard, silent = self._service.heard, 0.0
        while not self._closed.wait(_TICK_SECONDS):
            self._loop.poll()
            self._core.handle(Tick())
            before, now = now, time.monotonic()
            if now - pinged > self._heartbeat / 4:
                pinged, number = now, next(numbers)
                self._service.round_trip.note_ping(number, now)
                with contextlib.suppress(HostError):
                    self._send_to_service("watch", Ping(number))
            # Capped for each iteration: while this process itself is stopped, it reads no replies.
            silent += min(now - before, self._heartbeat / 4)
            if self._service.heard != heard:
                heard, silent = self._service.heard, 0.0
            if silent > self._heartbeat and self._mirror.ended is None:
                self._listener.report_loss(f"has not responded for {self._heartbeat:.0f} seconds")

    def _collect(self) -> None:
        """Frees objects that only cycles refer to, and notifies the service."""
        gc.collect()
        self._send_unused()
        with contextlib.suppress(HostError):
            self._send_to_service("steps", Collected())

    def _send_unused(self) -> None:
        """Notifies the service of the arrays that are no longer held."""
        for gang in [*self.pool.gangs]:
            with self._freeing:
                unused = gang.life.unused.take_all()
                if not unused or gang.is_lost():
                    continue
                sent = self._sent_of([unused])
                self._sent.difference_update(unused)
                with contextlib.suppress(HostError):
                    self._send_to_service(
                        "steps", ReleaseArrays(gang.number, gang.life.key.start, unused, sent)
                    )

    def _free_unused(self) -> None:
        """Frees arrays, slices and programs in batches, for islands that no step frees them with."""
        while not self._closed.wait(_FREE_SECONDS):
            self._send_unused()
            with contextlib.suppress(HostError):
                self._send_released()
            for program in self._unneeded.take_all():
                if program.is_ready():
                    with contextlib.suppress(HostError):
                        self._send_to_service("watch", Unload(program.number))

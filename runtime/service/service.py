"""Service: the controller of islands that many clients share.

The dispatch thread, which calls `serve`, reads the ordered messages of workers and clients, passes them to
the scheduler (`control.sharing.scheduler`), and sends the steps that it issues to workers. It never blocks on
a peer: messages that a peer does not read are buffered. Large data and long operations have separate threads
for each client: arrays that it sends or fetches, and programs that are compiled for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import get_args

from pathways.runtime.control.cluster_view import REPORT_SECONDS
from pathways.runtime.control.effects import (
    Effect,
    GangDraining,
    GangJoined,
    GangLeaving,
    GangLost,
    GangReturned,
    StepFailed,
    WakeWaiters,
)
from pathways.runtime.control.records.errors import Failure, HostError, failed
from pathways.runtime.control.records.reports import HostReport
from pathways.runtime.hosts.cluster.host import HostGang, WorkerHandle
from pathways.runtime.hosts.cluster.starter import Starter
from pathways.runtime.hosts.cluster.worker_cluster import WorkerCluster
from pathways.runtime.hosts.launch.launcher_choice import start_description
from pathways.runtime.hosts.launch.options import HostOptions
from pathways.runtime.hosts.launch.settings import Island, Settings
from pathways.runtime.hosts.protocol.messages import (
    CHANNELS,
    ClockTime,
    FromTracing,
    KeepClients,
    Message,
    MessageError,
    Purpose,
    ReleaseClient,
    RunTimes,
)
from pathways.runtime.hosts.protocol.wire import ConnectionEnded
from pathways.runtime.resources.accounts import AccountRecord
from pathways.runtime.resources.status import ClientStatus, ServiceStatus
from pathways.runtime.resources.threads import start_thread
from pathways.runtime.service.admission import Admission
from pathways.runtime.service.control_requests import ControlRequestHandler
from pathways.runtime.service.protocol.admin import AddRequest, ChangeRequest
from pathways.runtime.service.protocol.service_messages import (
    AdmissionDenied,
    Collected,
    CollectRequest,
    FromHost,
    IslandAddedNotice,
    IslandDrainingNotice,
    IslandLeavingNotice,
    IslandLostNotice,
    IslandReturnedNotice,
    LoadForeignProgram,
    LoadProgram,
    MoveReport,
    ProgramLoaded,
    QuotaError,
    RemoteError,
    StepRefusedNotice,
)
from pathways.runtime.service.relayed_calls import RelayedCalls
from pathways.runtime.service.relayed_replies import cancel_fetches, cancel_lost_fetches, start_fetch
from pathways.runtime.service.relaying.array_sender import ArraySender, Sender
from pathways.runtime.service.relaying.incoming_arrays import IncomingArrays
from pathways.runtime.service.relaying.relayed_traces import RelayedTraces
from pathways.runtime.service.served.island_drains import IslandDrains
from pathways.runtime.service.served.island_views import (
    changes_since,
    client_status,
    island_facts,
    island_status,
)
from pathways.runtime.service.served.request_parser import RequestParser
from pathways.runtime.service.served.served_client import (
    ServedCall,
    ServedClient,
    ServedProgram,
    ServedStep,
    ServedTrace,
)
from pathways.runtime.service.sharing.memory import DeviceBytes, DeviceLimits
from pathways.runtime.service.sharing.program_charges import ProgramIdentity
from pathways.runtime.service.sharing.rules import RuleBook, SharingRules
from pathways.runtime.service.sharing.scheduler_events import (
    AcceptArray,
    ArrayArrived,
    ArrayOffered,
    ClientChanged,
    ClientJoined,
    ClientLeft,
    CollectMemory,
    DenyArray,
    DisconnectClient,
    DispatchRequest,
    FreeClientArrays,
    IssueStep,
    MemoryCollected,
    OrderedRequest,
    RefuseStep,
    RoundTripMeasured,
    SchedulerEvent,
    WorkSubmitted,
)
from pathways.runtime.service.sharing.service_core import ServiceCore
from pathways.runtime.service.step_reports import BATCH_SECONDS, StepReports

_POLL_SECONDS = 0.1
"""Longest wait for messages, and interval of measurements of round trips, in seconds."""

log = logging.getLogger("pathways")


class Service:
    """Islands of a cluster, shared by many clients.

    Args:
      rules: the rules by which clients share the islands.
      starter: starts the workers; the service closes it.
      at_end: is called with the options of the workers after they have exited.

    Raises:
      HostError: a worker does not start.
    """

    def __init__(
        self,
        settings: Settings,
        starter: Starter,
        *,
        rules: SharingRules | None = None,
        at_end: Callable[[HostOptions], None] = lambda _: None,
    ) -> None:
        self._at_end = at_end
        self._closed = threading.Event()
        self._ended = threading.Event()
        rules = rules or SharingRules()
        self._book = RuleBook(rules)
        # Decisions about arrays that clients begin to send, by the numbers of clients and arrays.
        self._offers: dict[tuple[int, int], queue.SimpleQueue[bool]] = {}
        self._events: list[SchedulerEvent] = []
        try:
            self._workers = WorkerCluster(
                starter, settings, sink=self, make_core=functools.partial(ServiceCore, rules=rules)
            )
        except BaseException:
            starter.close()
            raise
        self._settings = settings
        self._core = self._workers.core
        self._pool = self._workers.pool
        self._listener = self._workers.listener
        self._listener.handlers.update(dict.fromkeys(get_args(FromTracing), self._relay_trace))
        self._loop = self._listener.loop
        core = self._core.core
        assert isinstance(core, ServiceCore)
        self._service_core = core
        self._schedule_events = core.schedule
        self._scheduler = core.scheduler
        self._charges = core.charges
        self._calls = RelayedCalls(self._send, self._listener.lose, self._events.append)
        self._reports = StepReports(core, self._pool, self._send, self._events.append)
        self._limits = {n: limits for n, limits in enumerate(rules.islands) if limits is not None}
        self._request_parser = RequestParser(self._pool, self._scheduler.accounts, self._limits)
        self._since = time.time()
        self._measured = 0.0
        self._admission = Admission(
            settings,
            self._book,
            self._pool,
            lambda client: self._loop.post(functools.partial(self._join, client)),
            self.request_disconnect,
        )
        # Messages go straight to their handlers: each step has several.
        self.accept = self._admission.accept
        self.on_called, self.on_done = self._calls.on_called, self._reports.on_done
        self._traces = RelayedTraces()
        self._control_requests = ControlRequestHandler(
            self._workers,
            lambda *loaded: self._loop.post(functools.partial(self._register_program, *loaded)),
            self._request_unload,
            self._limits,
            lambda client: self._scheduler.memory.quota_of(client.name),
        )
        slices = self._control_requests.bound_slices
        self._drains = IslandDrains(
            self._core, core, self._pool, slices, self._admission.clients, self._compute
        )
        self.drain, self.return_island = self._drains.drain, self._drains.return_island
        self.on_leaving = self._drains.on_leaving
        # Effects are carried out by the dispatch thread only, since they have an order among steps.
        self._core.run_effect, self._core.defer = self._act, self._loop.wake

    # Called by other threads.

    def admits(self, purpose: Purpose) -> bool:
        """Returns whether it accepts connections for a purpose."""
        return purpose.role == "client" and purpose.to == "service" and purpose.channel in CHANNELS

    def request_disconnect(self, client: ServedClient, why: str) -> None:
        """Disconnects a client in the dispatch thread; any thread may call it, more than once."""
        self._loop.post(functools.partial(self._disconnect, client, why))

    def disconnect_client(self, name: str) -> bool:
        """Disconnects the client of a name; returns whether there is one."""
        client = self._admission.find(name)
        if client is None:
            return False
        self.request_disconnect(client, "requested by pw-cluster end")
        return client.disconnected.wait(10)

    def change_client(self, request: ChangeRequest) -> str | None:
        """Changes the rules of a client; returns why not, if it does not."""
        late: str | None = "the service does not answer in time"
        return self._compute(lambda: self._change_client(request), late)

    def add_island(self, request: AddRequest, stop: threading.Event) -> str:
        """Starts a new island for all clients, and returns its name once it runs.

        Args:
          stop: cancels the start when it is set.

        Raises:
          HostError: a worker does not start; then nothing has changed.
          ValueError: the request is invalid, or the quotas do not fit; then nothing has changed.
        """
        limits = self._limits_of(request)
        self._scheduler.memory.check_island(limits)
        island = Island(request.hosts, request.devices_per_host, request.cores)
        alone = dataclasses.replace(self._settings.with_island(island), islands=(island,))
        log.info("adding an island: %s", start_description(alone))

        def join(hosts: Sequence[int], now: float) -> list[Effect]:
            number = len(self._service_core.gangs)
            effects = self._service_core.add_gang(hosts, now, limits)
            if limits is not None:
                self._limits[number] = limits
            return effects

        try:
            name = self._workers.effect_runner.add_island(island, stop, join).name
        except (HostError, ValueError) as error:
            log.warning("no island was added: %s", error)
            raise
        # Returns after the effects of the join: from then on clients are given its devices.
        self._compute(lambda: None, None)
        return name

    def _limits_of(self, request: AddRequest) -> DeviceLimits | None:
        """Returns the memory of the devices of a new island; by default as much as island0 has.

        Raises:
          ValueError: it is invalid.
        """
        first = self._limits.get(0)
        if request.memory is None and request.pool is None:
            return first
        memory = request.memory or (None if first is None else first.memory)
        if memory is None:
            raise ValueError("pool: expected device_memory beside it")
        pool = memory // 4 if request.pool is None else request.pool
        if pool >= memory:
            raise ValueError("pool: expected less than device_memory")
        return DeviceLimits(memory, pool)

    def accounts(self) -> tuple[AccountRecord, ...] | None:
        """Returns the accounts of all clients; None if the dispatch thread does not answer in time."""
        return self._compute(self._scheduler.accounts.records, None)

    def take_account_changes(self) -> tuple[AccountRecord, ...]:
        """Returns the use of islands since the last call, however long the dispatch thread takes."""
        take = self._scheduler.accounts.take_changes
        if self._ended.is_set():
            return take()
        changes: tuple[AccountRecord, ...] | None = None
        replies: queue.SimpleQueue[tuple[AccountRecord, ...]] = queue.SimpleQueue()
        self._loop.post(lambda: replies.put(take()))
        while changes is None:
            # Nobody else would get the changes of a dispatch thread that is late.
            has_ended = self._ended.is_set()
            try:
                changes = replies.get(timeout=REPORT_SECONDS)
            except queue.Empty:
                changes = take() if has_ended else None
        return changes

    def revoke(self, name: str) -> None:
        """Disconnects the client of a name if it has attached with a token of this name."""
        client = self._admission.find(name)
        if client is not None and client.has_client_token:
            self.request_disconnect(client, "its token was revoked")
            client.disconnected.wait(10)

    def close(self) -> None:
        """Makes `serve` disconnect all clients, terminate the workers and return; any thread may call it."""
        self._closed.set()
        self._admission.close()
        self._loop.wake()

    def status(self) -> ServiceStatus:
        """Returns the status of the islands and the clients."""
        request = self._core.request_reports(range(len(self._pool.hosts)))
        self._core.wait_for(request, 2 * REPORT_SECONDS)
        reports: dict[int, HostReport] = {host: received[-1] for host, received in request.answers.items()}
        slices = self._control_requests.slices()

        def collect() -> list[ClientStatus]:
            clients = []
            for scheduled in self._scheduler.clients.values():
                client = self._admission.clients[scheduled.number]
                of_client = slices.get(client, ())
                quota = self._scheduler.memory.quota_of(client.name)
                clients.append(client_status(client, scheduled, of_client, self._pool.gangs, reports, quota))
            return clients

        clients: list[ClientStatus] = self._compute(collect, [])
        return ServiceStatus(
            os.getpid(),
            tuple(
                island_status(gang, reports, self._limits.get(gang.number)) for gang in [*self._pool.gangs]
            ),
            tuple(clients),
            self._workers.spares(),
            self._since,
            time.time(),
        )

    def _compute[T](self, function: Callable[[], T], default: T) -> T:
        """Returns the result of a function in the dispatch thread, which alone changes the scheduler.

        The default is the result of a function that does not return in time.
        """
        if self._ended.is_set():
            return function()
        results: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._loop.post(lambda: results.put(function()))
        try:
            return results.get(timeout=REPORT_SECONDS)
        except queue.Empty:
            return default

    # The dispatch thread.

    def serve(self) -> None:
        """Serves clients until `close` is called."""
        try:
            while not self._closed.is_set():
                self._loop.run_once(BATCH_SECONDS if self._reports.has_unreported() else _POLL_SECONDS)
                self._iterate()
        finally:
            self._admission.close()
            for client in [*self._admission.clients.values()]:
                self._disconnect(client, "the service is shutting down")
            self._control_requests.close()
            self._core.defer = None
            self._workers.close()
            self._ended.set()
            self._at_end(self._settings.options)

    def _iterate(self) -> None:
        """Runs one iteration of the dispatch thread, after messages were read."""
        now = time.monotonic()
        self._core.carry_out()
        if now - self._measured > _POLL_SECONDS:
            self._measured = now
            self._measure_round_trips()
        self._reports.report_due(now)
        # Together, so that the scheduler fills each island once for all; the effects may add further events.
        while self._events:
            events = [*self._events]
            self._events.clear()
            self._schedule(*events)
        self._reports.report_settled()

    def _measure_round_trips(self) -> None:
        """Passes the scheduler the round trips to islands."""
        for gang in self._pool.gangs:
            if (trip := gang.round_trip) is not None:
                self._events.append(RoundTripMeasured(gang.number, trip))

    def _schedule(self, *events: SchedulerEvent) -> None:
        """Passes events to the scheduler, and carries out the effects."""
        self._core.queue(functools.partial(self._schedule_events, events))
        self._core.carry_out()

    def _broadcast(self, message: Message) -> None:
        """Sends all clients a message about an island, and removes the steps that it ends."""
        for client in [*self._admission.clients.values()]:
            # A client that has not joined gets all of them when it does, see `_join`.
            if client.is_joined:
                self._send(client, message)
        self._remove_ended()

    def _remove_ended(self) -> None:
        """Removes calls and steps that ended with lost hosts."""
        self._calls.remove_ended()
        self._reports.remove_ended()

    def _act(self, effect: Effect) -> None:
        """Carries out an effect of the core."""
        match effect:
            case IssueStep(ServedStep() as step):
                self._issue(step)
            case DispatchRequest():
                self._dispatch(effect)
            case RefuseStep(ServedStep() as step, why, is_over_quota):
                self._refuse(step, Failure(QuotaError, why) if is_over_quota else failed(why))
            case FreeClientArrays(_, island, arrays):
                self._free(island, arrays)
            case CollectMemory(number):
                if (client := self._admission.clients.get(number)) is not None:
                    self._send(client, CollectRequest())
            case AcceptArray(offer) | DenyArray(offer):
                if (answer := self._offers.pop((offer.client, offer.array), None)) is not None:
                    answer.put(isinstance(effect, AcceptArray))
            case DisconnectClient(number, why):
                if (client := self._admission.clients.get(number)) is not None:
                    self.request_disconnect(client, why)
            case StepFailed(failure):
                self._reports.on_failed(failure)
            case GangDraining(key, why):
                for client in [*self._admission.clients.values()]:
                    if client.is_joined:
                        moves = self._drains.moves_of(client, key.island)
                        self._send(client, IslandDrainingNotice(*key, RemoteError.of(why), moves))
            case GangLeaving(key, why):
                self._broadcast(IslandLeavingNotice(*key, RemoteError.of(why)))
            case GangLost(key, why, is_dead, is_out):
                self._broadcast(IslandLostNotice(*key, RemoteError.of(why), is_dead, is_out))
                cancel_lost_fetches(self._admission.clients.values())
            case GangReturned(key):
                gang = self._pool.gangs[key.island]
                self._control_requests.bound_slices.open_island(gang.name)
                # First: the new workers cannot know which clients have disconnected meanwhile.
                self._send_clients(gang)
                self._broadcast(IslandReturnedNotice(key.island, island_facts(gang)))
            case GangJoined(key):
                gang = self._pool.gangs[key.island]
                self._send_clients(gang)
                self._control_requests.extend()
                self._broadcast(IslandAddedNotice(key.island, island_facts(gang)))
            case _:
                self._workers.effect_runner.run(effect)
                if isinstance(effect, WakeWaiters):
                    self._remove_ended()

    def _send_clients(self, gang: HostGang) -> None:
        """Notifies new workers of the clients that are connected."""
        connected = self._admission.numbers()
        for host in gang.hosts:
            with contextlib.suppress(ConnectionEnded):
                host.steps.send(KeepClients(connected))

    def _issue(self, step: ServedStep) -> None:
        """Sends a step to its hosts."""
        program = step.served
        program.queued -= 1
        self._reports.add(step)
        hosted = program.hosted
        frames = hosted.frames(step.number, step.number + 1, step.arguments)
        for host, frame in zip(hosted.hosts, frames, strict=True):
            try:
                host.steps.send_frames(frame)
            except ConnectionEnded as error:
                self._listener.lose(host, error)
        if program.is_unwanted:
            self._unload_if_unwanted(program)

    def _dispatch(self, dispatch: DispatchRequest) -> None:
        """Sends a request that the scheduler has dispatched to its hosts."""
        self._free(dispatch.item.island, dispatch.frees)
        client = self._admission.clients.get(dispatch.item.client)
        request = dispatch.item.context
        if client is None or request is None:
            return
        if isinstance(request, ServedCall):
            denied = None if dispatch.denied is None else failed(dispatch.denied)
            self._calls.send(request, denied or dispatch.why)
        elif isinstance(request, ServedTrace):
            self._traces.change(request.host, client.number, request.message)
        else:
            missing = None if dispatch.has_arguments else dispatch.denied or "the array does not exist"
            start_fetch(self._core, client, request, missing=missing, lose=self._listener.lose)

    def _refuse(self, step: ServedStep, why: Failure) -> None:
        step.served.queued -= 1
        gangs = step.served.hosted.gangs
        problem = next((gang.life.problem for gang in gangs if gang.life.problem is not None), None)
        self._send(step.owner, StepRefusedNotice(step.number, RemoteError.of(problem or why)))
        self._unload_if_unwanted(step.served)

    def _free(self, island: int, arrays: Sequence[int]) -> None:
        """Frees arrays of an island on its hosts, with the next step or soon."""
        unused = self._pool.gangs[island].life.unused
        for number in arrays:
            unused.add(number)

    def _unload_if_unwanted(self, program: ServedProgram) -> None:
        if program.is_unwanted and not program.queued:
            self._workers.unload(program.hosted)

    def _relay_trace(self, host: WorkerHandle, message: FromTracing) -> None:
        """Relays the times of steps to the clients that trace them."""
        start = host.gang.life.key.start
        if isinstance(message, ClockTime):
            self._control_requests.on_clock(host, message)
            return
        for number, relayed in self._traces.route((host.index, start), message):
            client = self._admission.clients.get(number)
            # A client gets the times of its own programs only.
            if client is None or (isinstance(relayed, RunTimes) and relayed.program not in client.programs):
                continue
            client.watch.send(FromHost(host.index, start, relayed))

    # Clients.

    def _send(self, client: ServedClient, *messages: Message) -> None:
        """Sends a client messages that have an order."""
        if "steps" not in client.connections or client.disconnected.is_set():
            return
        try:
            client.connections["steps"].send(*messages)
        except ConnectionEnded as error:
            # Not at once: a disconnection issues steps of other clients, which would overtake the effects
            # that are being carried out.
            self.request_disconnect(client, str(error))

    def _join(self, client: ServedClient) -> None:
        """Adds a client to the scheduler once it has opened all its connections."""
        if client.disconnected.is_set():
            return
        end = functools.partial(self.request_disconnect, client)
        client.steps = client.connections["steps"]
        client.arrays = ArraySender(client.connections["arrays"], end)
        client.watch = Sender(client.connections["watch"], end)
        log.info("%s connected", client)
        rules = self._book.of(client.name)
        self._schedule(
            ClientJoined(
                client.number,
                rules.weight,
                client.name,
                rules.priority,
                rules.is_suspended,
                rules.step_limit,
            )
        )
        self._loop.add(client.steps, functools.partial(self._read_client, client), buffers=True, pauses=True)
        # The state of islands may have changed since the client was admitted.
        for gang, start in itertools.zip_longest([*self._pool.gangs], client.starts):
            self._send(client, *changes_since(gang, start))
        # From here on it gets the notices of all changes.
        client.is_joined = True
        arrays = IncomingArrays(
            client.has_number,
            self._pool,
            lambda gang, number, count: self._post_event(
                ArrayArrived(client.number, *gang.life.key, number, count)
            ),
            # Of an array whose sending the client has canceled after its last byte.
            lambda gang, number: self._post_event(
                WorkSubmitted(OrderedRequest(client.number, gang.number, (number,)))
            ),
            self._listener.lose,
            functools.partial(self._admit_array, client),
        )
        client.connections["arrays"].place = arrays.place
        start_thread(functools.partial(self._listen_to_arrays, client, arrays), "listen")
        handle = functools.partial(self._handle_request, client)
        start_thread(functools.partial(self._listen, client, "watch", handle), "listen")

    def _disconnect(self, client: ServedClient, why: str) -> None:
        """Disconnects a client, and frees its arrays, programs and devices."""
        if client.disconnected.is_set():
            return
        log.info("%s disconnected: %s", client, why)
        with contextlib.suppress(ConnectionEnded):
            client.connections.get("steps", client.connections["watch"]).send(AdmissionDenied(why))
        # After the reason, since nothing is sent from here on, and before devices and programs are released,
        # so that no request in another thread gets new ones.
        client.disconnected.set()
        if client.is_joined:
            self._loop.remove(client.steps)
            client.arrays.close()
            client.watch.close()
        for connection in client.connections.values():
            connection.close()
        self._schedule(ClientLeft(client.number))
        # The scheduler has dropped the queued steps of the client, without an effect for each.
        for program in client.programs.values():
            program.is_unwanted, program.queued = True, 0
            self._unload_if_unwanted(program)
        self._admission.remove(client)
        self._control_requests.remove_client(client)
        self._traces.remove_client(client.number, self._pool.hosts)
        for worker in self._pool.hosts:
            with contextlib.suppress(ConnectionEnded):
                worker.steps.send(ReleaseClient(client.number))
        cancel_fetches(client)

    def _read_client(self, client: ServedClient) -> None:
        """Reads the ordered requests of a client that have arrived."""
        try:
            for message in client.steps.read_available():
                if isinstance(message, Collected):
                    self._events.append(MemoryCollected(client.number))
                    continue
                if isinstance(message, MoveReport):
                    self._events += self._drains.report(client, message)
                    continue
                for request in self._request_parser.parse(client, message):
                    if isinstance(request, StepRefusedNotice):
                        self._send(client, request)
                    else:
                        self._events.append(WorkSubmitted(request))
        except (ConnectionEnded, MessageError) as error:
            self._disconnect(client, str(error))
        except Exception as error:
            self._disconnect(client, _unexpected_error(client, error))

    # Requests without an order, in the threads of each client.

    def _listen(self, client: ServedClient, channel: str, handle: Callable[[object], None]) -> None:
        connection = client.connections[channel]
        try:
            while not client.disconnected.is_set():
                handle(connection.receive())
        except (ConnectionEnded, MessageError) as error:
            self.request_disconnect(client, str(error))
        except Exception as error:
            self.request_disconnect(client, _unexpected_error(client, error))

    def _listen_to_arrays(self, client: ServedClient, arrays: IncomingArrays) -> None:
        try:
            self._listen(client, "arrays", arrays.handle)
        finally:
            arrays.close()

    def _change_client(self, request: ChangeRequest) -> str | None:
        """Changes the rules of a client, in the dispatch thread; returns why not, if it does not."""
        name, client = request.name, self._admission.find(request.name)
        if client is None and not self._book.is_named(name):
            return f"no client {name!r} is connected, and the file of the cluster names none"
        if request.memory is not None:
            if not self._limits:
                return "no island of the cluster has device_memory, which quotas are a part of"
            try:
                self._scheduler.change_quota(name, request.memory)
            except ValueError as error:
                return str(error)
        rules = self._book.change(request)
        log.info("client %r: changed by pw-cluster to %s", name, rules)
        if client is not None and client.is_joined:
            self._schedule(ClientChanged(client.number, rules.weight, rules.priority, rules.is_suspended))
        return None

    def _admit_array(self, client: ServedClient, gang: HostGang, array: int, memory: DeviceBytes) -> bool:
        """Waits until an array that a client begins to send fits its quota; returns whether it does."""
        if gang.number not in self._limits or not memory:
            return True
        answer = self._offers[client.number, array] = queue.SimpleQueue()
        self._post_event(ArrayOffered(client.number, *gang.life.key, array, memory))
        return answer.get()

    def _post_event(self, event: SchedulerEvent) -> None:
        """Passes the scheduler an event; any thread may call it."""
        self._loop.post(functools.partial(self._events.append, event))

    def _handle_request(self, client: ServedClient, message: object) -> None:
        """Handles a request without an order; does not load a program that has ended its island too often.

        Raises:
          MessageError: the request is invalid.
        """
        if isinstance(message, LoadProgram | LoadForeignProgram):
            request = message.request
            if request in client.loads:
                raise MessageError(f"{client} has sent two requests {request} to load a program")
            identity = client.loads[request] = ProgramIdentity(client.name, message.digest())
            if (why := self._charges.refusal(identity, message.name, message.islands())) is not None:
                refused = RemoteError.of(failed(why))
                self._loop.post(functools.partial(self._register_program, client, request, refused))
                return
        self._control_requests.handle(client, message)

    def _register_program(
        self, client: ServedClient, request: int, loaded: ServedProgram | RemoteError
    ) -> None:
        """Registers a loaded program and replies to its client, in the dispatch thread."""
        identity = client.loads.pop(request)
        if isinstance(loaded, RemoteError):
            self._send(client, ProgramLoaded(request, 0, {}, {}, 1, {}, loaded))
            return
        if client.disconnected.is_set():
            self._workers.unload(loaded.hosted)
            return
        loaded.identity = identity
        loaded.open_accounts(self._scheduler.accounts, client.name, time.monotonic())
        if loaded.is_loaded:
            client.programs[loaded.hosted.number] = loaded
        # Send pending notices about these islands first, so that the client knows the workers of `starts`.
        self._core.carry_out()
        self._send(client, loaded.describe(request))

    def _request_unload(self, client: ServedClient, number: int) -> None:
        """Unloads a program of a client after its queued steps; any thread may call it."""

        def unload() -> None:
            program = client.programs.pop(number, None)
            if program is not None:
                program.is_unwanted = True
                self._unload_if_unwanted(program)

        self._loop.post(unload)


def _unexpected_error(client: ServedClient, error: Exception) -> str:
    """Logs an unexpected error, for which only its client is disconnected; returns the reason."""
    log.exception("cannot handle a message of %s", client)
    return f"its message led to {type(error).__name__}: {error}"

"""A service: the controller of islands that many clients share.

One thread, which calls `serve`, reads all that has an order, of workers and of clients, tells the scheduler
(`control.sharing.scheduler`), and sends steps to workers when it is their turn. It waits for nobody: what
others do not read is kept for them. What is large, and what takes long, has threads of its own for each
client: arrays that it sends, what it fetches, programs that are compiled for it.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pathways.runtime.control.cluster_view import REPORT_SECONDS
from pathways.runtime.control.core import ClusterCore
from pathways.runtime.control.effects import (
    Effect,
    GangLeaving,
    GangLost,
    GangReturned,
    StepFailed,
    WakeWaiters,
)
from pathways.runtime.control.held_failures import HeldFailure
from pathways.runtime.control.records.errors import HostError, failed, lost
from pathways.runtime.control.records.reports import HostReport
from pathways.runtime.control.records.step import SESSION_BITS
from pathways.runtime.control.sharing.scheduler import Policy
from pathways.runtime.control.sharing.scheduler_events import (
    ArrayArrived,
    CallFinished,
    ClientJoined,
    ClientLeft,
    DisconnectClient,
    DispatchRequest,
    FreeClientArrays,
    IslandStepDone,
    IssueStep,
    OrderedRequest,
    RefuseStep,
    RoundTripMeasured,
    SchedulerEvent,
    WorkSubmitted,
)
from pathways.runtime.hosts.cluster.host import HostGang, WorkerHandle
from pathways.runtime.hosts.cluster.hosted_program import HostedProgram
from pathways.runtime.hosts.cluster.starter import Starter
from pathways.runtime.hosts.cluster.worker_cluster import WorkerCluster
from pathways.runtime.hosts.cluster.worker_listener import FromTracing
from pathways.runtime.hosts.launch.settings import Settings
from pathways.runtime.hosts.protocol import service_messages
from pathways.runtime.hosts.protocol.handshake import ServerHandshake
from pathways.runtime.hosts.protocol.messages import (
    CHANNELS,
    Called,
    ClockTime,
    Credit,
    Done,
    Failed,
    Fetch,
    Message,
    MessageError,
    Purpose,
    ReleaseClient,
    RunTimes,
    StartTrace,
    StopTrace,
    versions,
)
from pathways.runtime.hosts.protocol.service_messages import (
    AdmissionDenied,
    Admitted,
    FromHost,
    HostsDone,
    Indeterminate,
    IslandFacts,
    IslandLeavingNotice,
    IslandLostNotice,
    IslandReturnedNotice,
    ProgramLoaded,
    RemoteError,
    StepRefusedNotice,
    WorkerFacts,
)
from pathways.runtime.hosts.protocol.wire import Connection, ConnectionEnded
from pathways.runtime.hosts.service.array_sender import FIRST_BYTES, ArraySender, RelayedFetch, Sender
from pathways.runtime.hosts.service.control_requests import ControlRequestHandler
from pathways.runtime.hosts.service.incoming_arrays import IncomingArrays
from pathways.runtime.hosts.service.relayed_replies import ClientFetch
from pathways.runtime.hosts.service.relayed_traces import RelayedTraces
from pathways.runtime.hosts.service.request_parser import RequestParser
from pathways.runtime.hosts.service.served_client import (
    ServedCall,
    ServedClient,
    ServedProgram,
    ServedStep,
    ServedTrace,
)
from pathways.runtime.resources.status import (
    ClientStatus,
    IslandStatus,
    ServiceStatus,
    SharedHostStatus,
)
from pathways.runtime.resources.threads import start_thread

CONNECT_SECONDS = 10.0
"""How long a client may take to open all its connections."""

_LOOK_SECONDS = 0.05

_TOGETHER_SECONDS = 0.001
"""How long a client may not be told that a host is done with a step while others are not: most are soon."""

log = logging.getLogger("pathways")


class Service:
    """The islands of a cluster, shared by many clients.

    Args:
      settings: how the workers are started and watched.
      weights: the shares of clients, by their names; others have 1.
      policy: whose step is next, see `Scheduler`.
      starter: starts the workers; by default as the settings say.

    Raises:
      HostError: a worker does not start.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        weights: Mapping[str, float] | None = None,
        policy: Policy = "fair",
        starter: Starter | None = None,
    ) -> None:
        self._weights = dict(weights or {})
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._clients: dict[int, ServedClient] = {}
        self._client_numbers = itertools.count(1)
        self._issued: dict[int, ServedStep] = {}
        self._calls: dict[int, ServedCall] = {}
        # Of islands of several hosts: what is done, and may still be spoiled.
        self._unsettled: list[ServedStep] = []
        self._events: list[SchedulerEvent] = []
        # Steps of which hosts are done that their clients have not been told of, and since when.
        self._unsaid: collections.deque[tuple[float, ServedStep]] = collections.deque()
        starter = Starter.of(settings) if starter is None else starter
        try:
            self._workers = WorkerCluster(starter, settings, sink=self, policy=policy)
        except BaseException:
            starter.close()
            raise
        self._settings = settings
        self._core = self._workers.core
        self._pool = self._workers.pool
        self._listener = self._workers.listener
        self._loop = self._listener.loop
        core = self._core.core
        assert isinstance(core, ClusterCore)
        self._scheduler = core.scheduler
        self._requests = RequestParser(self._pool)
        self._looked = 0.0
        self._traces = RelayedTraces()
        self._questions = ControlRequestHandler(self._workers, self._loaded, self._unload)
        # What has an order among steps, one thread does.
        self._core.act, self._core.defer = self._act, self._loop.wake

    # What other threads say.

    def admits(self, purpose: Purpose) -> bool:
        """Whether connections are for this."""
        return purpose.role == "client" and purpose.to == "service" and purpose.channel in CHANNELS

    def greet(self, connection: Connection[Any], keeper: ServerHandshake) -> None:
        """Takes a connection of a client, which has proved who it is."""
        purpose = keeper.purpose
        assert purpose is not None
        connection.read_with(service_messages.decode_for_service)
        connection.keep_alive(self._settings.options.heartbeat)
        if purpose.channel == "watch":
            self._admit(connection, keeper, purpose.name)
            return
        with self._lock:
            client = self._clients.get(purpose.epoch)
            is_wanted = (
                client is not None
                and client.name == purpose.name
                and not client.disconnected.is_set()
                and purpose.channel not in client.connections
            )
            if client is None or not is_wanted:
                connection.close()
                return
            client.connections[purpose.channel] = connection
            is_whole = len(client.connections) == len(CHANNELS)
        if is_whole:
            self._loop.post(functools.partial(self._join, client))

    def _admit(self, connection: Connection[Any], keeper: ServerHandshake, name: str) -> None:
        """Lets a client in, or says why not."""
        self._wait_for_end_of(name)
        why = None
        if keeper.versions != versions():
            theirs, ours = ", ".join(keeper.versions), ", ".join(versions())
            why = f"it runs pathways, jaxlib and Python {theirs}, but the service {ours}"
        with self._lock:
            if why is None and self._client(name) is not None:
                why = f"a client called {name!r} already exists; choose another name with client="
            if why is None and self._closed.is_set():
                why = "it ends"
            if why is None:
                weight = self._weights.get(name, 1.0)
                facts = tuple(map(_facts, self._pool.gangs))
                starts = tuple(island.start for island in facts)
                client = ServedClient(next(self._client_numbers), name, weight, connection, starts)
                self._clients[client.number] = client
        with contextlib.suppress(ConnectionEnded):
            if why is not None:
                connection.send(AdmissionDenied(why))
                connection.close()
                return
            options = self._settings.options
            connection.send(
                Admitted(client.number, facts, options.heartbeat, options.stall_report, options.step_deadline)
            )

        def give_up() -> None:
            client.disconnected.wait(CONNECT_SECONDS)
            with self._lock:
                is_whole = len(client.connections) == len(CHANNELS)
            if not is_whole:
                self.end(client, "it did not open its connections")

        start_thread(give_up, "admit")

    def _client(self, name: str) -> ServedClient | None:
        """The client of a name; the lock is held."""
        there = [client for client in self._clients.values() if not client.disconnected.is_set()]
        return next((client for client in there if client.name == name), None)

    def _wait_for_end_of(self, name: str) -> None:
        """Waits until a client is gone that has just left: another one may come at once with its name."""
        with self._lock:
            client = self._client(name)
        if client is not None and client.connections["watch"].has_ended():
            self.end(client, "the connection has ended")
            client.disconnected.wait(CONNECT_SECONDS)

    def end(self, client: ServedClient, why: str) -> None:
        """Ends a client; what it has is freed. Any thread may say so, more than once."""
        self._loop.post(functools.partial(self._leave, client, why))

    def end_client(self, name: str) -> bool:
        """Ends the client of a name; whether there is one."""
        with self._lock:
            client = self._client(name)
        if client is None:
            return False
        self.end(client, "it was ended with pw-cluster end")
        return client.disconnected.wait(10)

    def close(self) -> None:
        """Ends all clients and workers, and `serve`; any thread may say so."""
        self._closed.set()
        self._loop.wake()

    def status(self) -> ServiceStatus:
        """How the islands and the clients are."""
        request = self._core.ask_reports(range(len(self._pool.hosts)))
        self._core.wait_for(request, 2 * REPORT_SECONDS)
        reports: dict[int, HostReport] = {host: said[-1] for host, said in request.answers.items()}
        clients: list[ClientStatus] = []
        asked = threading.Event()

        def look() -> None:
            for known in self._scheduler.clients.values():
                arrays, size = _held(known.number, self._pool.gangs, reports)
                clients.append(
                    ClientStatus(
                        self._clients[known.number].name,
                        known.weight,
                        known.steps_done,
                        known.queued,
                        known.device_seconds,
                        arrays,
                        size,
                    )
                )
            asked.set()

        self._loop.post(look)
        asked.wait(REPORT_SECONDS)
        return ServiceStatus(
            os.getpid(),
            tuple(_island_status(gang, reports) for gang in [*self._pool.gangs]),
            tuple(clients),
            self._workers.spares(),
        )

    # The dispatch thread.

    def serve(self) -> None:
        """Serves clients until `close` is called."""
        try:
            while not self._closed.is_set():
                self._loop.look(_TOGETHER_SECONDS if self._unsaid else _LOOK_SECONDS)
                self._turn()
        finally:
            self._closed.set()
            for client in [*self._clients.values()]:
                self._leave(client, "the service has ended")
            self._questions.close()
            self._core.defer = None
            self._workers.close()

    def _turn(self) -> None:
        now = time.monotonic()
        self._core.carry_out()
        if now - self._looked > _LOOK_SECONDS:
            self._looked = now
            self._measure_round_trips()
        while self._unsaid:
            since, step = self._unsaid[0]
            if step.unsaid and now - since < _TOGETHER_SECONDS:
                break
            self._unsaid.popleft()
            self._say_done(step)
        while self._events:
            events, self._events = self._events, []
            self._schedule(*events)
        self._settle()

    def _measure_round_trips(self) -> None:
        """Tells the scheduler how far islands are."""
        for gang in self._pool.gangs:
            trips = [trip for host in gang.hosts if (trip := host.round_trip.seconds) is not None]
            if trips:
                self._events.append(RoundTripMeasured(gang.number, max(trips)))

    def _schedule(self, *events: SchedulerEvent) -> None:
        """Tells the scheduler what happened, and does what it wants."""
        self._core.schedule(events)
        self._core.carry_out()

    def _tell_all(self, message: Message) -> None:
        """Tells all clients what has become of an island."""
        for client in [*self._clients.values()]:
            self._say(client, message)
        self._forget_lost()

    def _forget_lost(self) -> None:
        """Forgets steps whose hosts are done or gone; tells of those that fail because hosts are cut off."""
        self._calls = {n: served for n, served in self._calls.items() if not served.gang.is_lost()}
        for number, step in [*self._issued.items()]:
            if step.has_cut_hosts() and not step.is_cut:
                step.is_cut = True
                for host, why in step.cut_hosts().items():
                    self._say(step.owner, service_messages.StepCutOff(number, (host,), RemoteError.of(why)))
            if step.is_done():
                del self._issued[number]
                if self._core.core.has_multi_host_islands and step not in self._unsettled:
                    self._unsettled.append(step)

    def _act(self, effect: Effect) -> None:
        """Carries out what the core wants."""
        match effect:
            case IssueStep(ServedStep() as step):
                self._issue(step)
            case DispatchRequest():
                self._take_turn(effect)
            case RefuseStep(ServedStep() as step, why):
                self._refuse(step, why)
            case FreeClientArrays(_, island, arrays):
                self._free(island, arrays)
            case DisconnectClient(number, why):
                if (client := self._clients.get(number)) is not None:
                    self.end(client, why)
            case StepFailed(failure):
                self._on_failed(failure)
            case GangLeaving(key, why):
                self._tell_all(IslandLeavingNotice(*key, RemoteError.of(why)))
            case GangLost(key, why, is_dead):
                self._tell_all(IslandLostNotice(*key, RemoteError.of(why), is_dead))
            case GangReturned(key):
                self._tell_all(IslandReturnedNotice(key.island, _facts(self._pool.gangs[key.island])))
            case _:
                self._workers.effect_runner.run(effect)
                if isinstance(effect, WakeWaiters):
                    self._forget_lost()

    def _issue(self, step: ServedStep) -> None:
        """Sends a step to its hosts."""
        program = step.served
        program.queued -= 1
        self._issued[step.number] = step
        hosted = program.hosted
        frames = hosted.frames(step.number, step.number + 1, step.arguments)
        for host, frame in zip(hosted.hosts, frames, strict=True):
            try:
                host.steps.send_frames(frame)
            except ConnectionEnded as error:
                self._listener.lose(host, error)
        self._unload_if_unwanted(program)

    def _take_turn(self, turn: DispatchRequest) -> None:
        self._free(turn.item.island, turn.frees)
        client = self._clients.get(turn.item.client)
        what = turn.item.what
        if client is None or what is None:
            return
        if isinstance(what, ServedCall):
            self._call(what, turn)
        elif isinstance(what, ServedTrace):
            self._trace(client, what.host, what.message)
        else:
            self._begin_fetch(client, what, is_there=turn.has_arguments)

    def _call(self, served: ServedCall, turn: DispatchRequest) -> None:
        """Has hosts call a function."""
        gang, call = served.gang, served.call
        if gang.is_lost():
            return
        if turn.why is not None:
            # What it would have made has no place anywhere, and is an error to who takes it.
            call = msgspec.structs.replace(call, hosts=())
            self._say(served.client, StepRefusedNotice(call.call, RemoteError.of(turn.why)))
            self._end_call(served)
        else:
            self._calls[call.call] = served
        # Clients number lanes, too, and none waits for another one's.
        lane = served.client.number << SESSION_BITS | call.lane
        for host in gang.hosts:
            if host.index in served.hosts:
                try:
                    host.steps.send(msgspec.structs.replace(call, lane=lane))
                except ConnectionEnded as error:
                    self._listener.lose(host, error)

    def on_called(self, host: WorkerHandle, called: Called) -> None:
        """See `WorkerSink`."""
        served = self._calls.get(called.call)
        if served is None:
            return
        self._say(served.client, FromHost(host.index, served.gang.life.key.start, called))
        served.left.discard(host.index)
        if not served.left:
            del self._calls[called.call]
            self._end_call(served)

    def _end_call(self, served: ServedCall) -> None:
        """Tells the scheduler that no host has anything of a call any more."""
        assert served.queued is not None
        self._events.append(CallFinished(served.queued))

    def _begin_fetch(self, client: ServedClient, fetch: RelayedFetch, *, is_there: bool) -> None:
        if fetch.host.gang.is_lost():
            # The loss itself, which is sent to all clients, fails the request.
            return
        if not is_there:
            self._fail(client, fetch, "the array is not there")
            return
        request = self._core.ask([fetch.host.index], ClientFetch(client, fetch))
        fetch.number = request.number
        client.fetches[request.number] = fetch
        asked = fetch.fetch
        try:
            fetch.host.steps.send(
                Fetch(request.number, asked.array, asked.devices, asked.size, min(asked.size, FIRST_BYTES))
            )
        except ConnectionEnded as error:
            self._listener.lose(fetch.host, error)
        client.arrays.begin(fetch)

    def _fail(self, client: ServedClient, fetch: RelayedFetch, why: str) -> None:
        told = Failed(fetch.fetch.request, why)
        client.arrays.send(FromHost(fetch.host.index, fetch.start, told))

    def _refuse(self, step: ServedStep, why: str) -> None:
        step.served.queued -= 1
        gangs = step.served.hosted.gangs
        problem = next((gang.life.problem for gang in gangs if gang.life.problem is not None), None)
        self._say(step.owner, StepRefusedNotice(step.number, RemoteError.of(problem or failed(why))))
        self._unload_if_unwanted(step.served)

    def _free(self, island: int, arrays: Sequence[int]) -> None:
        """Has the hosts of an island forget arrays, with the next step or soon."""
        unused = self._pool.gangs[island].life.unused
        for number in arrays:
            unused.add(number)

    def _unload_if_unwanted(self, program: ServedProgram) -> None:
        if program.is_unwanted and not program.queued:
            self._workers.unload(program.hosted)

    def on_done(self, host: WorkerHandle, done: Done) -> None:
        """See `WorkerSink`."""
        step = self._issued.get(done.run)
        if step is None:
            return
        if not step.unsaid and not self._core.core.has_multi_host_islands:
            self._unsaid.append((host.pulse.heard, step))
        step.unsaid.append(host.index)
        self._note_end(step, host.gang, done.took)

    def _on_failed(self, failure: HeldFailure) -> None:
        """Handles that a step failed on a host."""
        # Not among those issued: a loss may have ended it, and its client waits for this host, too.
        step = failure.step
        assert isinstance(step, ServedStep)
        done = Done(step.number, failure.error, dict(failure.wrong), failure.took)
        step.failed.append(FromHost(failure.host, failure.gang.start, done))
        self._note_end(step, self._pool.gangs[failure.gang.island], failure.took)

    def _note_end(self, step: ServedStep, gang: HostGang, seconds: float) -> None:
        """Notes that a host of an island is done with a step, or that it failed there."""
        is_several = self._core.core.has_multi_host_islands
        took = step.took[gang.number] = max(step.took.get(gang.number, 0.0), seconds)
        if len(gang.hosts) == 1 or step.is_done(gang.life.hosts):
            self._events.append(IslandStepDone(step, gang.number, took))
        is_done = step.is_done()
        if is_done and self._issued.pop(step.number, None) is not None and is_several:
            self._unsettled.append(step)
        if not is_several and (is_done or step.failed):
            self._say_done(step)

    def _say_done(self, step: ServedStep) -> None:
        """Tells a client which hosts are done with a step, if it does not know."""
        if step.failed:
            self._say(step.owner, *step.failed)
            step.failed.clear()
        if step.unsaid:
            self._say(step.owner, HostsDone(step.number, tuple(step.unsaid)))
            step.unsaid.clear()

    def _settle(self) -> None:
        """Tells of steps that nothing can spoil any more, or that are spoiled."""
        if not self._unsettled:
            return
        kept = []
        for step in self._unsettled:
            if not step.is_settled():
                kept.append(step)
                continue
            try:
                step.check_spoiled()
            except HostError as error:
                spoiled = error.record()
                text = spoiled.text.removeprefix(f"{step.subject}: ")
                self._say(step.owner, Indeterminate(step.number, RemoteError(spoiled.kind.__name__, text)))
                continue
            self._say_done(step)
        self._unsettled = kept

    def on_tracing(self, host: WorkerHandle, message: FromTracing) -> None:
        """See `WorkerSink`."""
        start = host.gang.life.key.start
        if isinstance(message, ClockTime):
            self._questions.on_clock(host, message)
            return
        for number, told in self._traces.take((host.index, start), message):
            known = self._clients.get(number)
            # Of its own programs alone.
            if known is not None and (not isinstance(told, RunTimes) or told.program in known.programs):
                known.watch.send(FromHost(host.index, start, told))

    def _trace(self, client: ServedClient, host: WorkerHandle, trace: StartTrace | StopTrace) -> None:
        """Begins or ends a trace of a client, when all is issued that it asked for before."""
        worker = host.index, host.gang.life.key.start
        if isinstance(trace, StartTrace):
            messages = self._traces.begin(worker, client.number, trace.trace)
        else:
            messages = self._traces.end(worker, client.number)
        with contextlib.suppress(ConnectionEnded):
            host.steps.send(*messages)

    # Clients.

    def _say(self, client: ServedClient, *messages: Message) -> None:
        """Tells a client something that has an order."""
        if "steps" not in client.connections or client.disconnected.is_set():
            return
        try:
            client.connections["steps"].send(*messages)
        except ConnectionEnded as error:
            # Later: what is under way would be sent after what its end makes room for.
            self.end(client, str(error))

    def _join(self, client: ServedClient) -> None:
        """A client has all its connections."""
        if client.disconnected.is_set():
            return
        end = functools.partial(self.end, client)
        client.steps = client.connections["steps"]
        client.arrays = ArraySender(client.connections["arrays"], end)
        client.watch = Sender(client.connections["watch"], end)
        client.is_joined = True
        log.info("%s is there", client)
        self._schedule(ClientJoined(client.number, client.weight))
        self._loop.add(client.steps, functools.partial(self._read_client, client), keeps=True, pauses=True)
        # What became of islands since it was told of them first.
        for gang, start in zip(self._pool.gangs, client.starts, strict=True):
            self._say(client, *_changes(gang, start))
        arrays = IncomingArrays(
            client.owns,
            self._pool,
            functools.partial(self._arrive, client),
            functools.partial(self._free_arrived, client),
            self._listener.lose,
        )
        client.connections["arrays"].place = arrays.place
        start_thread(functools.partial(self._listen_to_arrays, client, arrays), "listen")
        ask = functools.partial(self._questions.take, client)
        start_thread(functools.partial(self._listen, client, "watch", ask), "listen")

    def _leave(self, client: ServedClient, why: str) -> None:
        """A client is gone, or has to go: all that it has is freed."""
        if client.disconnected.is_set():
            return
        log.info("%s is gone: %s", client, why)
        self._say_end(client, why)
        client.disconnected.set()
        if client.is_joined:
            self._loop.forget(client.steps)
            client.arrays.close()
            client.watch.close()
        for connection in client.connections.values():
            connection.close()
        self._schedule(ClientLeft(client.number))
        for program in client.programs.values():
            program.is_unwanted, program.queued = True, 0
            self._unload_if_unwanted(program)
        with self._lock:
            self._clients.pop(client.number, None)
        self._questions.forget(client)
        for host, start in self._traces.workers(client.number):
            worker = self._pool.hosts[host]
            if worker.gang.life.key.start == start:
                with contextlib.suppress(ConnectionEnded):
                    worker.steps.send(*self._traces.end((host, start), client.number))
        for worker in self._pool.hosts:
            with contextlib.suppress(ConnectionEnded):
                worker.steps.send(ReleaseClient(client.number))
        fetches = [*client.fetches.values()]

        def give_up() -> None:
            for fetch in fetches:
                with contextlib.suppress(ConnectionEnded):
                    fetch.host.arrays.send(Credit(fetch.number, -1))

        if fetches:
            start_thread(give_up, "give up")

    def _say_end(self, client: ServedClient, why: str) -> None:
        """Tells a client why it ends, if it reads."""
        with contextlib.suppress(ConnectionEnded):
            client.connections.get("steps", client.connections["watch"]).send(AdmissionDenied(why))

    def _read_client(self, client: ServedClient) -> None:
        """Reads what a client has said that has an order."""
        try:
            for message in client.steps.read_available():
                for asked in self._requests.read(client, message):
                    if isinstance(asked, StepRefusedNotice):
                        self._say(client, asked)
                    else:
                        self._events.append(WorkSubmitted(asked))
        except (ConnectionEnded, MessageError) as error:
            self._leave(client, str(error))
        except Exception as error:
            self._leave(client, _unforeseen(client, error))

    # What has no order.

    def _listen(self, client: ServedClient, channel: str, take: Callable[[object], None]) -> None:
        connection = client.connections[channel]
        try:
            while not client.disconnected.is_set():
                take(connection.receive())
        except (ConnectionEnded, MessageError) as error:
            self.end(client, str(error))
        except Exception as error:
            self.end(client, _unforeseen(client, error))

    def _listen_to_arrays(self, client: ServedClient, arrays: IncomingArrays) -> None:
        try:
            self._listen(client, "arrays", arrays.take)
        finally:
            arrays.close()

    def _arrive(self, client: ServedClient, gang: HostGang, number: int) -> None:
        """All of an array is on its way to an island; any thread may say so."""

        def arrive() -> None:
            self._events.append(ArrayArrived(client.number, *gang.life.key, number))

        self._loop.post(arrive)

    def _free_arrived(self, client: ServedClient, gang: HostGang, number: int) -> None:
        """Frees an array whose sending a client has canceled after its last byte; any thread may call it."""
        freed = OrderedRequest(client.number, gang.number, (number,))
        self._loop.post(lambda: self._events.append(WorkSubmitted(freed)))

    def _loaded(self, client: ServedClient, request: int, loaded: HostedProgram | RemoteError) -> None:
        """A program is loaded for a client, or it is not; any thread may say so."""
        self._loop.post(functools.partial(self._keep, client, request, loaded))

    def _keep(self, client: ServedClient, request: int, loaded: HostedProgram | RemoteError) -> None:
        if isinstance(loaded, RemoteError):
            self._say(client, ProgramLoaded(request, 0, {}, {}, 1, {}, loaded))
            return
        if client.disconnected.is_set():
            self._workers.unload(loaded)
            return
        client.programs[loaded.number] = ServedProgram(loaded)
        inputs, outputs = (
            {island: tuple(port.plain() for port in own) for island, own in ports.items()}
            for ports in (loaded.inputs, loaded.outputs)
        )
        starts = {gang.number: gang.life.key.start for gang in loaded.gangs}
        # What became of them meanwhile comes first.
        self._core.carry_out()
        self._say(client, ProgramLoaded(request, loaded.number, inputs, outputs, loaded.share, starts))

    def _unload(self, client: ServedClient, number: int) -> None:
        """A client needs a program no more; any thread may say so."""

        def unload() -> None:
            program = client.programs.pop(number, None)
            if program is not None:
                program.is_unwanted = True
                self._unload_if_unwanted(program)

        self._loop.post(unload)


def _unforeseen(client: ServedClient, error: Exception) -> str:
    """Why a client ends whose message led to an error that nobody foresaw: the service goes on for others."""
    log.exception("a message of %s", client)
    return f"its message led to {type(error).__name__}: {error}"


def _held(client: int, gangs: Sequence[HostGang], reports: Mapping[int, HostReport]) -> tuple[int, int]:
    """How many arrays a client has, and their bytes; all hosts of an island have parts of the same arrays."""
    arrays = size = 0
    for gang in gangs:
        held = [
            reports[host.index].clients.get(client, (0, 0)) for host in gang.hosts if host.index in reports
        ]
        arrays += max((count for count, _ in held), default=0)
        size += sum(own for _, own in held)
    return arrays, size


def _facts(gang: HostGang) -> IslandFacts:
    return IslandFacts(
        gang.life.key.start,
        tuple(WorkerFacts(host.index, host.process.pid, host.ready) for host in gang.hosts),
    )


def _changes(gang: HostGang, start: int) -> Iterator[Message]:
    """Yields messages about an island to a client that was told last of its workers of some start."""
    life = gang.life
    if life.key.start != start:
        yield IslandLostNotice(gang.number, start, RemoteError.of(lost(f"{gang.name} was lost")), False)
        yield IslandReturnedNotice(gang.number, _facts(gang))
    if life.failure is not None:
        yield IslandLostNotice(*life.key, RemoteError.of(life.failure), life.is_dead())
    elif life.problem is not None:
        yield IslandLeavingNotice(*life.key, RemoteError.of(life.problem))


def _island_status(gang: HostGang, reports: Mapping[int, HostReport]) -> IslandStatus:
    problem = gang.life.problem
    return IslandStatus(
        gang.name,
        "running" if problem is None else problem.text,
        tuple(
            SharedHostStatus(
                host.index,
                host.process.pid,
                None if report is None else report.arrays,
                None if report is None else report.bytes,
            )
            for host in gang.hosts
            for report in [reports.get(host.index)]
        ),
    )
